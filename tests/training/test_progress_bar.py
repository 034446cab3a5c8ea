"""The bar of a training: where it begins and ends, and what it shows."""

import io
import re
from typing import Any

import pytest
from stable_baselines3 import DQN, PPO
from tqdm import tqdm

from rl_infonce.training.progress_bar import ProgressBar, last_step, progress_bar


def cartpole(**settings: Any) -> PPO:
    return PPO("MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, device="cpu", **settings)


@pytest.mark.parametrize(("n_timesteps", "end"), [(1, 64), (64, 64), (65, 128), (200, 256)])
def test_rollouts_are_made_whole(n_timesteps: int, end: int) -> None:
    model = cartpole()
    assert last_step(model, n_timesteps) == end
    assert model.learn(n_timesteps).num_timesteps == end


def test_a_training_that_goes_on_ends_where_its_rollouts_do() -> None:
    model = cartpole().learn(64)
    assert last_step(model, 200) == 256
    assert model.learn(200 - 64, reset_num_timesteps=False).num_timesteps == 256


def test_off_policy_steps_are_those_that_were_asked_for() -> None:
    assert last_step(DQN("MlpPolicy", "CartPole-v1", device="cpu"), 201) == 201


def test_the_bar_shows_steps_rate_and_return(capsys: pytest.CaptureFixture[str]) -> None:
    model = cartpole(seed=0).learn(64)
    with progress_bar(model, 200) as bar:
        model.learn(136, bar, reset_num_timesteps=False)
    shown = capsys.readouterr().err.split("\r")
    assert any(line.startswith(" 25%") and " 64/256 " in line for line in shown)
    assert re.search(r"100%.* 256/256 .*step/s, return=\d+\.\d+\]", shown[-1])


def test_more_steps_than_were_foreseen_leave_the_bar_whole() -> None:
    drawn = io.StringIO()
    with tqdm(total=100, file=drawn) as bar:
        cartpole().learn(128, ProgressBar(bar))
    assert "128/128" in drawn.getvalue()
