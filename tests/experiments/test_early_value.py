"""How soon the value function learns is noted, and compared by seed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.loading import load


@pytest.mark.atari
@pytest.mark.parametrize(
    ("game", "arm", "expected"),
    [
        ("assault", "ratio_01", {"step", "value", "accuracy"}),
        ("carnival", "baseline", {"step", "value"}),
    ],
)
def test_a_run_notes_what_is_logged(game: str, arm: str, expected: set[str]) -> None:
    run = load("early_value.py").train(game, arm, 0, 2048)
    assert [row["step"] for row in run["rows"]] == [1024.0]
    assert run["rows"][0].keys() == expected


def test_the_table_pairs_by_seed(tmp_path: Path) -> None:
    script = load("early_value.py")
    values = {
        ("baseline", 0): 0.5,
        ("baseline", 1): 0.25,
        ("coef_01", 0): 0.25,
        ("coef_01", 1): 0.0,
    }
    for (arm, seed), value in values.items():
        rows: list[dict[str, Any]] = [{"step": 10, "value": -9.0}, {"step": 60, "value": value}]
        if arm != "baseline":
            rows[1]["accuracy"] = 0.75
        run = {"game": "breakout", "arm": arm, "seed": seed, "n_steps": 100, "rows": rows}
        (tmp_path / f"breakout-{arm}-{seed}.json").write_text(json.dumps(run))
    shown = script.table(tmp_path).splitlines()
    assert shown[2].endswith("| - | - |")
    assert shown[3].startswith("| breakout | coef_01 | 2 | 0.12 (-1.46 to 1.71) | -0.25 (-0.25 to")
    assert shown[3].endswith("| 0.75 |")
    assert len(shown) == 4
    assert math.isnan(script.second_half({"rows": [], "n_steps": 100}, "value"))
