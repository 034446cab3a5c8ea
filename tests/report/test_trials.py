"""Trials of a search on the page of a report."""

import numpy as np

from rl_infonce.report.report import make_report
from rl_infonce.report.trials import Search, Trial, trials_table

TRIALS = [
    Trial("trial_000", "done", {"n_pairs": 8, "infonce_coef": 0.123456}, -0.5),
    Trial("trial_001", "failed", {"n_pairs": 16, "infonce_coef": 1.0}, None),
    Trial("trial_002", "done", {"n_pairs": 16, "n_epochs": 2}, 0.25),
    Trial("trial_003", "begun", {}, None),
]


def test_the_best_trial_stands_first_and_none_is_hidden() -> None:
    header, rows, _ = trials_table(TRIALS)
    assert header == ["trial", "value", "n_pairs", "infonce_coef", "n_epochs"]
    assert rows == [
        ["trial_002", "0.25", "16", "", "2"],
        ["trial_000", "-0.5", "8", "0.1235", ""],
        ["trial_001", "failed", "16", "1", ""],
        ["trial_003", "begun", "", "", ""],
    ]


def test_a_search_alone_is_a_report() -> None:
    rng = np.random.default_rng(0)
    search = Search(TRIALS, "final score, mean over the grid")
    report = make_report(
        "A search", [], missing=["a cell"], scales=None, rng=rng, n_seeds={"a": 1}, search=search
    )
    assert "## Trials" in report.markdown
    assert "Missing: a cell." in report.markdown
    assert "its value is the final score, mean over the grid. " in report.markdown
    assert report.html.count("<tr>") == 5
    assert "How it was made" not in report.html
    assert len(report.csv.splitlines()) == 1
