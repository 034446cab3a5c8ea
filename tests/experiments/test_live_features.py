"""Dead features and their spread: the arithmetic, and one trained cell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from rl_infonce.cli import main as rl_infonce
from tests.experiments.loading import load
from tests.sweeps.grids import write_grid


def test_measures_are_those_of_the_features() -> None:
    features = np.array([[0, 0, 3, 0], [0, 2, 3, 0], [0, 4, 3, 4]], np.float32)
    found = load("live_features.py").measures(features)
    assert found["dead_share"] == 1 / 4
    assert found["std"] == pytest.approx((0 + np.sqrt(8 / 3) + 0 + np.sqrt(32 / 9)) / 4)
    assert found["norm"] == pytest.approx((3 + np.sqrt(13) + np.sqrt(41)) / 3)


@pytest.mark.atari
@pytest.mark.filterwarnings("ignore:Expected at least 3 games")
def test_a_cell_is_measured_beside_what_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load("live_features.py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    probe = {"n_frames": 1000, "protocol": ["converged"]}
    grid = write_grid(tmp_path / "grid.toml", arms=["baseline"], probe=probe, n_timesteps=64)
    sweep = tmp_path / "sweep"
    assert rl_infonce(["sweep", str(grid), "-o", str(sweep)]) == 0
    capsys.readouterr()
    flags = [str(sweep), "--output", str(tmp_path), "--n-states", "64"]
    monkeypatch.setattr(sys, "argv", ["live_features.py", *flags])
    script.main()
    untrained, trained = json.loads((tmp_path / "live_features.json").read_text())["cells"]
    assert (untrained["arm"], trained["arm"]) == ("untrained", "baseline")
    # the learning rate of a single rollout is 0, so that this is the network it began with
    assert all(trained[name] == pytest.approx(untrained[name], rel=1e-5) for name in script.COLUMNS)
    rows = capsys.readouterr().out.splitlines()
    assert rows[2].startswith(f"| breakout | untrained | {untrained['dead_share']:.3f} | ")
