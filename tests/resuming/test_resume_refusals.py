"""What a restored run refuses, or goes on with on request."""

from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.utils import LinearSchedule

from rl_infonce.resuming.model_state import model_settings
from rl_infonce.resuming.resume_callback import ResumeCallback
from rl_infonce.runs.checkpoints import (
    latest_checkpoint,
)
from tests.files.test_state_file import assert_same
from tests.resuming.killing import (
    everything,
    learn,
)
from tests.sb3.worlds import ALGORITHMS, policy_kwargs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "A2C"}, r"algorithm is 'A2C' \(was 'PPO'\)"),
        ({"n_epochs": 5}, r"n_epochs is 5 \(was 2\)"),
        (
            {"gamma": 0.5, "ent_coef": 0.1},
            r"ent_coef is 0.1 \(was 0.0\); gamma is 0.5 \(was 0.99\)",
        ),
        ({"gamma": np.float64(0.5)}, r"gamma is 0.5 \(was 0.99\)"),
        ({"clip_range": 0.1}, r"clip_range.value_schedule.val is 0.1 \(was 0.2\)"),
        (
            {"learning_rate": LinearSchedule(3e-4, 0.0, 1.0)},
            r"learning_rate is None \(was 0.0003\); learning_rate.end is 0.0 \(was None\)",
        ),
        (
            {"kwargs": policy_kwargs(positives="shuffled", n_pairs=8)},
            r"policy_kwargs.features_extractor_kwargs.n_pairs is 8 \(was 16\); "
            r"policy_kwargs.features_extractor_kwargs.positives is 'shuffled' \(was None\)",
        ),
        (
            {"kwargs": {**policy_kwargs(), "activation_fn": torch.nn.ReLU, "net_arch": [8]}},
            r"activation_fn is 'ReLU' \(was None\); policy_kwargs.net_arch.0 is 8 \(was None\); "
            r"policy_kwargs.net_arch.length is 1 \(was 0\)",
        ),
    ],
)
def test_other_settings_are_listed(change: dict[str, Any], message: str, finished: Path) -> None:
    build = ALGORITHMS[change.get("algorithm", "PPO")]
    own = {name: value for name, value in change.items() if name != "algorithm"}
    model = build(**{"kwargs": policy_kwargs(), **own})
    with pytest.raises(ValueError, match=message):
        ResumeCallback(finished).restore(model)


def test_numbers_of_numpy_and_units_are_settings() -> None:
    def settings(**changes: Any) -> dict[str, Any]:
        kwargs = {"net_arch": [np.int64(8)]}
        return model_settings(DQN("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs, **changes))

    found = settings(learning_rate=np.float64(0.5), train_freq=(4, "episode"))
    assert found["learning_rate"] == 0.5
    assert found["policy_kwargs.net_arch.0"] == 8
    assert found["train_freq.1"] == "episode"
    assert settings(gamma=np.float64(0.99)) == settings(gamma=0.99)


@pytest.mark.atari
def test_the_arguments_of_wrappers_are_settings() -> None:
    gym.register_envs(ale_py)
    given = {"noop_max": 10, "frame_skip": 2, "action_repeat_probability": 0.25}
    env = make_atari_env("BreakoutNoFrameskip-v4", 1, wrapper_kwargs=given)
    settings = model_settings(PPO("CnnPolicy", env, n_steps=8, batch_size=8))
    found = {name.rpartition(".")[2]: each for name, each in settings.items()}
    assert found["noop_max"] == 10
    assert found["skip"] == 2
    assert found["action_repeat_probability"] == 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [({"gamma": 0.5}, "gamma is 0.5"), ({"clip_range": 0.1}, "clip_range")],
)
def test_other_settings_are_possible_on_request(
    change: dict[str, Any], message: str, finished: Path
) -> None:
    model, run = ALGORITHMS["PPO"](policy_kwargs(), **change), ResumeCallback(finished)
    before = everything(model)
    with pytest.raises(ValueError, match=message):
        run.restore(model)
    assert_same(everything(model), before)
    assert run.restore(model, inexact=True)
    assert model.num_timesteps == 192
    assert not run.is_exact
    learn(model, run, n=256)
    assert latest_checkpoint(finished).about["is_exact"] is False


@pytest.mark.parametrize(
    ("optimizer", "keeps_moments"),
    [
        ({"optimizer_kwargs": {"weight_decay": 0.5, "eps": 0.25}}, True),
        ({"optimizer_kwargs": {"amsgrad": True}}, False),
        ({"optimizer_class": torch.optim.RMSprop, "optimizer_kwargs": {"momentum": 0.5}}, False),
        ({"optimizer_class": torch.optim.Adagrad, "optimizer_kwargs": {"eps": 0.25}}, False),
    ],
)
def test_other_settings_of_the_optimizer_hold(
    optimizer: dict[str, Any], keeps_moments: bool, finished: Path
) -> None:
    kwargs = {**policy_kwargs(), **optimizer}
    model, run = ALGORITHMS["PPO"](kwargs), ResumeCallback(finished)
    expected = dict(model.policy.optimizer.param_groups[0])
    assert run.restore(model, inexact=True)
    states = model.policy.optimizer.state_dict()["state"].values()
    assert any("exp_avg" in each for each in states) is keeps_moments
    learn(model, run, n=256)
    (group,) = model.policy.optimizer.param_groups
    assert group.keys() == expected.keys()
    assert all(group[name] == expected[name] for name in group.keys() - {"params", "lr"})


def test_other_versions_are_listed(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    software = {"versions": {"torch": "1.0"}, "git_commit": None}
    monkeypatch.setattr("rl_infonce.resuming.resume_callback.software", lambda: software)
    with pytest.raises(ValueError, match=r"torch is 1\.0 \(was 2"):
        ResumeCallback(finished).restore(ALGORITHMS["PPO"](policy_kwargs()))


def test_another_number_of_gpus_is_listed(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_infonce.resuming.model_state.n_gpus", lambda: 16)
    monkeypatch.setattr("rl_infonce.runs.random_streams.n_gpus", lambda: 16)
    model, run = ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(finished)
    with pytest.raises(ValueError, match=r"number of GPUs is 16 \(was \d\)"):
        run.restore(model)
    assert run.restore(model, inexact=True)
    learn(model, run, n=model.num_timesteps + 1)


@pytest.mark.parametrize(
    ("given", "error"),
    [({"save_freq": 0}, ValueError), ({"n_kept": 0}, ValueError), ({"n_kept": 1.0}, TypeError)],
)
def test_bad_arguments_are_named(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(given))):
        ResumeCallback("runs", **given)


def test_without_a_checkpoint_nothing_is_restored(tmp_path: Path) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs())
    before = everything(model)
    assert not ResumeCallback(tmp_path).restore(model)
    assert_same(everything(model), before)
