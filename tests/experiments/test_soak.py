"""The soak: everything is switched on and noted, and slopes are slopes."""

import sys
from pathlib import Path

import pytest
from stable_baselines3 import PPO

from rl_infonce import ResumeCallback
from tests.experiments.loading import load

soak = load("soak.py")

pytestmark = pytest.mark.slow


@pytest.mark.atari
@pytest.mark.thorough
def test_a_short_soak_has_everything_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("EVAL_FREQ", 8), ("N_ENVS", 2), ("N_PROBE_FRAMES", 2000)):
        monkeypatch.setattr(soak, name, value)
    monkeypatch.setattr(soak, "GAME", "breakout")
    found = soak.soak(1e-3, tmp_path)
    assert found["n_checkpoints"] == 0  # there was one rollout
    assert found["n_probes"] == 2  # at the start and at the end
    assert len(found["notes"]) == 1
    assert found["notes"][0]["resident_mb"] > 100
    assert found["notes"][0]["n_files"] > 3


def test_checkpoints_are_counted_when_they_are_written(tmp_path: Path) -> None:
    resume = ResumeCallback(tmp_path, save_freq=16)
    watch = soak.Watch(60, resume)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, n_epochs=1)
    model.learn(56, callback=[watch, resume])
    assert watch.saved == {16, 32, 48}  # that of step 56 comes after the last step


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_what_is_in_use_is_neither_more_nor_less() -> None:
    before = soak.bytes_in_use()
    kept = bytearray(10**8)
    assert 0.99e8 < soak.bytes_in_use() - before < 1.01e8
    del kept
    assert abs(soak.bytes_in_use() - before) < 1e6


def test_slopes_are_per_hour_and_of_the_second_half() -> None:
    notes = [
        {"seconds": 36.0 * i, "resident_mb": 900.0 if i < 5 else 800.0 + 2 * i} for i in range(10)
    ]
    assert soak.slope(notes, "resident_mb") == pytest.approx(200)
