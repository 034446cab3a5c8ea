"""Whole runs of a study, trained again by today's code."""

import json
from pathlib import Path

import pytest

pytest.importorskip("mujoco")
import whole_repeats
from regime_grids import runs_of
from regime_scores import measured

from tests.experiments.loading import RESULTS, study_page


def test_the_runs_are_those_of_the_study_and_no_others() -> None:
    whole, repeated = whole_repeats.whole_grid(), whole_repeats.repeated_grid()
    assert repeated.n_timesteps == whole.n_timesteps
    assert repeated.hyperparameters == whole.hyperparameters
    assert {
        (arm, whole.arms[arm]["infonce_coef"] if whole.arms[arm] else None) for arm in repeated.arms
    } == {
        ("baseline", 0.0),
        ("infonce", None),
    }
    assert set(repeated.seeds) <= set(whole.seeds)


def test_the_table_shows_mean_returns_of_both(tmp_path: Path) -> None:
    for arm in whole_repeats.ARMS:
        for seed in whole_repeats.SEEDS:
            name = f"{whole_repeats.TASK}-{arm}-{seed}.json"
            run = json.loads((whole_repeats.PUBLISHED / name).read_text())
            (tmp_path / name).write_text(json.dumps({**run, "curve": [-4.0 - seed] * 100}))
    _, _, baseline, infonce = whole_repeats.table(tmp_path).splitlines()
    assert baseline.endswith("| -4.5 (-5.0 to -4.0) |")
    assert infonce.startswith("| infonce | -19.9 (-20.7 to -19.6) |")


def test_todays_runs_return_what_the_study_does() -> None:
    again = RESULTS / "whole_repeats"
    assert whole_repeats.table(again).strip() in study_page("repeats.md")
    published = measured(runs_of(whole_repeats.whole_grid(), whole_repeats.PUBLISHED))
    today = measured(runs_of(whole_repeats.repeated_grid(), again))
    assert len(today) == 2
    for cell, own in today.items():
        assert sorted(own) == list(whole_repeats.SEEDS)
        scores = published[cell].values()
        spread = max(scores) - min(scores)
        assert all(
            min(scores) - spread / 2 < each < max(scores) + spread / 2 for each in own.values()
        )
