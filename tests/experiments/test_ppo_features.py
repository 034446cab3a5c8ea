"""What PPO's features know: every stage on one game, and the table's arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rl_infonce.probing import ProbeScores, Score
from tests.experiments.loading import load


@pytest.mark.atari
@pytest.mark.filterwarnings("ignore:Expected at least 3 games")
def test_all_stages_run_resume_and_leave_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load("ppo_features.py")
    monkeypatch.setattr(script, "GAMES", ("breakout",))
    monkeypatch.setattr(script, "SEEDS", (0,))
    monkeypatch.setattr(script, "N_ENVS", 2)
    monkeypatch.setattr(script, "PROTOCOLS", ("converged",))
    runs, output = tmp_path / "runs", tmp_path / "output"
    runs.mkdir()
    output.mkdir()
    script.train(runs, 256)
    script.probe(runs, output, 1000)
    made = sorted(path.name for path in output.iterdir())
    names = ("infonce-0", "majority", "stock-0", "untrained-0")
    assert made == [f"breakout-{name}.json" for name in names]
    assert len(capsys.readouterr().out.splitlines()) == 5
    script.train(runs, 256)
    script.probe(runs, output, 1000)
    assert not capsys.readouterr().out
    stock = json.loads((output / "breakout-stock-0.json").read_text())["converged"]
    assert f"{stock['mean']['f1_weighted']:.3f}" in script.table(output)


def scores(f1: float) -> ProbeScores:
    return ProbeScores("converged", Score(f1, f1, f1), {}, {}, {}, {}, {"test": 1}, {"test": 1}, {})


def test_the_table_pairs_arms_by_seed_and_shows_what_is_missing(tmp_path: Path) -> None:
    script = load("ppo_features.py")
    for seed, (stock, infonce) in enumerate([(0.2, 0.5), (0.3, 0.4), (0.4, 0.5)]):
        script.write(tmp_path / f"pong-stock-{seed}.json", {p: scores(stock) for p in ALL})
        if seed < 2:
            script.write(tmp_path / f"pong-infonce-{seed}.json", {p: scores(infonce) for p in ALL})
    rows = script.table(tmp_path).splitlines()
    pong = next(row for row in rows if row.startswith("| pong"))
    shown = (
        "| missing | missing | 0.300 (0.200 to 0.400) | 0.450 (0.400 to 0.500) | +0.300, +0.100 |"
    )
    assert pong == f"| pong {shown}"
    # two pairs: mean 0.2, deviation sqrt(0.02), t of 1 degree of freedom 12.706
    half = 12.7062 * np.sqrt(0.02) / np.sqrt(2)
    total = next(row for row in rows if row.startswith("| all"))
    assert f"+0.200 ({0.2 - half:+.3f} to {0.2 + half:+.3f}), 2 pairs" in total


ALL = ("converged", "anand2019")
