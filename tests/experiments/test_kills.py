"""Random kills: they are counted, and a difference at the end is seen."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.experiments.loading import load

kills = load("kills.py")

pytestmark = pytest.mark.slow

SMALL = {"n_envs": 1, "save_freq": 128, "n_pairs": 8, "hyperparams": ["n_epochs:1"]}
RUNS = {"PPO": {"game": "breakout", "algo": "ppo", "n_timesteps": 256, **SMALL}}


@pytest.mark.atari
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.thorough
def test_a_killed_run_is_counted_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "RUNS", RUNS)
    monkeypatch.setattr(kills, "SECONDS_TO_LIVE", (0.5, 0.5))
    kills.start("PPO", tmp_path / "whole").communicate()
    expected = kills.state_of(kills.run_folder(tmp_path / "whole"))
    rng = np.random.default_rng(0)
    found = kills.kill_until("PPO", 1, expected, rng, tmp_path / "killed")
    assert found == {
        **{"kills": 1, "killed_before_a_checkpoint": 1, "runs": 1, "runs_equal": 1, "refused": 0},
        **{"stray_files": 0, "steps_between_checkpoints": 128},
        **{"mean_steps_lost": 0.0, "most_steps_lost": 0},
    }
    assert "| PPO | 1 | 1 | 1 | 1 | 0 | 0 | 128 | 0.0 | 0 |" in kills.table(
        {"counts": {"PPO": found}}
    )
    assert kills.steps_lost(tmp_path / "killed", []) == 256
    assert kills.steps_lost(tmp_path / "killed", [Path("step_000000000200")]) == 56


def test_one_bit_is_a_difference() -> None:
    one = {"a": [1, (torch.zeros(2), None)], "b": np.ones(3)}
    assert kills.is_same(one, {"a": [1, (torch.zeros(2), None)], "b": np.ones(3)})
    assert not kills.is_same(one, {"a": [1, (torch.tensor([0, 1e-45]), None)], "b": np.ones(3)})
    assert not kills.is_same(one, {"a": [1, (torch.zeros(2), 0)], "b": np.ones(3)})
    assert not kills.is_same(one, {"a": one["a"]})
    for make in (float, np.array, torch.tensor):
        assert kills.is_same(make(np.nan), make(np.nan))
        assert not kills.is_same(make(0.0), make(-0.0))
    assert not kills.is_same(np.zeros(2, np.float32), np.zeros(2))
    assert not kills.is_same([1, 2], [1])
