"""What the code of the ST-DIM table pretrained and probed, and what today's does."""

import json
from pathlib import Path

import numpy as np
import pretraining_repeats as repeats
import pytest
from checkouts import ROOT
from safetensors.numpy import save_file

from tests.experiments.loading import committed, study_page


def test_each_row_of_the_table_is_made_again() -> None:
    cells = committed("stdim_table/pong-stdim-0.json")
    assert repeats.commits()["stdim"] == cells["git_commit"]
    assert set(repeats.commits()) == {
        *("majority", "random", "infonce", "cpc", "stdim", "positional_dim", "supervised")
    }


def test_weights_are_read_in_an_order_that_no_file_decides(tmp_path: Path) -> None:
    parts = {"b": np.array([[1.0, 2.0]]), "a": np.array([3.0])}
    (tmp_path / "pretrained").mkdir()
    save_file(parts, tmp_path / "pretrained" / "encoder.safetensors")
    np.testing.assert_array_equal(repeats.weights(tmp_path)["weights"], [3, 1, 2])


def test_scores_are_read_by_protocol(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    own = {"y": {"f1": 0.2, "accuracy": 0.3}, "x": {"f1": 0.4, "accuracy": 0.5}}
    content = {"scores": {each: {"variables": own} for each in ("anand2019", "converged")}}
    (tmp_path / "cells" / "pong-random-0.json").write_text(json.dumps(content))
    found = repeats.scores(tmp_path)
    assert list(found) == ["anand2019", "converged"]
    np.testing.assert_array_equal(found["converged"], [0.5, 0.4, 0.3, 0.2])


def test_numbers_are_compared_to_the_last_digit() -> None:
    then, now = (np.array([1.0, 2.0, each]) for each in (3.0, 3.25))
    row = repeats.compared({"weights": then}, {"weights": now})
    assert row == {"weights": {"n_compared": 3, "n_equal": 2, "largest_difference": 0.25}}
    lines = repeats.table([{"objective": "cpc", "commit": "123456789", **row}]).splitlines()
    assert lines[-1] == "| cpc | 12345678 | 2 of 3 (0.25) | - | - |"
    with pytest.raises(ValueError, match="broadcast"):
        repeats.compared({"weights": then}, {"weights": now[:2]})


@pytest.mark.slow
def test_todays_code_pretrains_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ("--budget", "1 steps", "-n", "4000", "--precision", "fp32", "--device", "cpu")
    monkeypatch.setattr(repeats, "PRETRAINED", (*sizes, "--batch-size", "4"))
    monkeypatch.setattr(repeats, "checked_out", lambda commit, path: ROOT)
    made = []
    for each in ("then", "now"):
        (tmp_path / each).mkdir()
        made.append(repeats.made("infonce", "any", tmp_path / each))
    found = repeats.compared(*made)["weights"]
    assert found["n_equal"] == found["n_compared"] > 1_000_000


def test_the_page_holds_what_was_compared() -> None:
    rows = {row["objective"]: row for row in committed("pretraining_repeats.json")["repeats"]}
    assert {objective: row["commit"] for objective, row in rows.items()} == repeats.commits()
    assert repeats.table(list(rows.values())).strip() in study_page("repeats.md")
    rounded = {("cpc", "weights"), ("random", "converged")}
    for objective, row in rows.items():
        for what in row.keys() & set(repeats.COLUMNS):
            if (objective, what) in rounded:
                assert 0 < row[what]["largest_difference"] < 0.002
            else:
                assert row[what]["n_equal"] == row[what]["n_compared"]
