"""What a restored run keeps of `VecNormalize`, and which of its settings it refuses."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from rl_infonce.resuming.env_state import (
    get_env_state,
    get_moments,
    normalizers,
    set_env_state,
)
from rl_infonce.resuming.model_state import differing_settings, get_run_state
from rl_infonce.resuming.resume_callback import ResumeCallback
from tests.files.test_state_file import assert_same
from tests.resuming.killing import learn


def build(env: Any, **changes: Any) -> PPO:
    return PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=1, **changes)


def normalized(**settings: Any) -> VecNormalize:
    return VecNormalize(make_vec_env("Pendulum-v1", 1, seed=3), **settings)


def moments_of(model: PPO) -> dict[str, Any]:
    normalizer = model.get_vec_normalize_env()
    assert normalizer is not None
    return get_moments(normalizer)


@pytest.fixture
def trained(tmp_path: Path) -> PPO:
    model = build(normalized())
    learn(model, ResumeCallback(tmp_path), n=64)
    return model


@pytest.mark.parametrize(
    ("setting", "value", "former"),
    [
        ("training", False, True),
        ("norm_obs", False, True),
        ("norm_reward", False, True),
        ("clip_obs", 5.0, 10.0),
        ("clip_reward", 5.0, 10.0),
        ("gamma", 0.9, 0.99),
        ("epsilon", 1e-6, 1e-8),
    ],
)
@pytest.mark.usefixtures("trained")
def test_another_setting_is_listed(setting: str, value: Any, former: Any, tmp_path: Path) -> None:
    model = build(normalized(**{setting: value}))
    with pytest.raises(
        ValueError, match=rf"got: VecNormalize\.0\.{setting} is {value} \(was {former}\)\."
    ):
        ResumeCallback(tmp_path).restore(model)
    run = ResumeCallback(tmp_path)
    assert run.restore(model, inexact=True)
    assert not run.is_exact


@pytest.mark.usefixtures("trained")
def test_a_missing_normalization_is_listed(tmp_path: Path) -> None:
    model = build(make_vec_env("Pendulum-v1", 1, seed=3))
    with pytest.raises(ValueError, match=r"got: number of VecNormalize is 0 \(was 1\)\."):
        ResumeCallback(tmp_path).restore(model)


def test_a_normalization_that_was_not_there_is_listed(tmp_path: Path) -> None:
    learn(build(make_vec_env("Pendulum-v1", 1, seed=3)), ResumeCallback(tmp_path), n=64)
    with pytest.raises(ValueError, match=r"got: number of VecNormalize is 1 \(was 0\)\."):
        ResumeCallback(tmp_path).restore(build(normalized()))


def test_with_another_setting_the_running_means_go_on(trained: PPO, tmp_path: Path) -> None:
    model = build(normalized(), ent_coef=0.1)
    assert ResumeCallback(tmp_path).restore(model, inexact=True)
    assert_same(moments_of(model), moments_of(trained))


@pytest.mark.thorough
def test_where_the_environment_begins_anew_the_running_means_go_on(tmp_path: Path) -> None:
    def unreadable() -> VecNormalize:
        return VecNormalize(SubprocVecEnv([lambda: gym.make("Pendulum-v1")]))

    model = build(unreadable())
    learn(model, ResumeCallback(tmp_path), n=64)
    again = build(unreadable())
    assert ResumeCallback(tmp_path).restore(again)
    assert_same(moments_of(again), moments_of(model))
    assert moments_of(again)["obs_rms"]["count"] > 64
    for each in (model, again):
        each.get_env().close()  # type: ignore[union-attr]


class Pair(gym.Env[dict[str, Any], Any]):
    """Observes two vectors."""

    observation_space = gym.spaces.Dict(
        {name: gym.spaces.Box(-9.0, 9.0, (2,)) for name in ("near", "far")}
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        return {name: np.ones(2, np.float32) for name in ("near", "far")}, {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 1.0, False, False, {}


def build_pair(keys: list[str]) -> PPO:
    env = VecNormalize(make_vec_env(Pair, 1), norm_obs_keys=keys)
    return PPO("MultiInputPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=1)


@pytest.mark.parametrize(
    ("former", "now"), [(["near", "far"], ["near"]), (["near"], ["far", "near"])]
)
def test_other_entries_are_refused_and_go_on_on_request(
    former: list[str], now: list[str], tmp_path: Path
) -> None:
    learn(build_pair(former), ResumeCallback(tmp_path), n=64)
    again = build_pair(now)
    words = rf"norm_obs_keys\.length is {len(now)} \(was {len(former)}\)"
    with pytest.raises(ValueError, match=words):
        ResumeCallback(tmp_path).restore(again)
    assert ResumeCallback(tmp_path).restore(again, inexact=True)
    counts = {key: each["count"] for key, each in moments_of(again)["obs_rms"].items()}
    assert {key for key, count in counts.items() if count > 64} == {"near"}


def test_the_order_of_entries_does_not_matter(tmp_path: Path) -> None:
    learn(build_pair(["near", "far"]), ResumeCallback(tmp_path), n=64)
    model = build_pair(["far", "near"])
    assert not differing_settings(model, get_run_state(build_pair(["near", "far"])))


def test_every_layer_goes_on(tmp_path: Path) -> None:
    def nested() -> VecNormalize:
        return VecNormalize(normalized(norm_obs=False), norm_reward=False)

    def inner(model: PPO) -> VecNormalize:
        return normalizers(model.env)[1]

    model = build(nested())
    learn(model, ResumeCallback(tmp_path), n=64)
    again = build(nested(), ent_coef=0.1)
    assert ResumeCallback(tmp_path).restore(again, inexact=True)
    assert_same(get_moments(inner(again)), get_moments(inner(model)))
    assert_same(moments_of(again), moments_of(model))
    other = build(nested())
    inner(other).clip_reward = 5.0
    with pytest.raises(ValueError, match=r"VecNormalize\.1\.clip_reward is 5\.0 \(was 10\.0\)\."):
        ResumeCallback(tmp_path).restore(other)


@pytest.mark.parametrize("forged", [[3], [{"means": 3}], [{"means": {"obs_rms": {"x": 1}}}]])
def test_moments_that_someone_made_up_are_refused(
    forged: Any, tmp_path: Path, trained: PPO, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = get_run_state(trained) | {"replay": None, "normalization": {"layers": forged}}
    monkeypatch.setattr("rl_infonce.resuming.resume_callback._read_state", lambda _: state)
    with pytest.raises(ValueError, match=rf"a state of this model in {tmp_path}"):
        ResumeCallback(tmp_path).restore(build(normalized(), ent_coef=0.1), inexact=True)


class Own(VecNormalize):
    """Takes part by itself."""

    def get_state(self) -> dict[str, Any]:
        return {"mean": self.obs_rms.mean.copy()}  # type: ignore[attr-defined]

    def set_state(self, state: dict[str, Any]) -> None:
        self.obs_rms.mean = state["mean"]  # type: ignore[attr-defined]


def test_a_class_with_a_state_of_its_own_is_left_to_it() -> None:
    env = Own(make_vec_env("Pendulum-v1", 1, seed=3))
    env.reset()
    other = Own(make_vec_env("Pendulum-v1", 1, seed=3))
    set_env_state(other, get_env_state(env))
    assert other.obs_rms.mean.any()  # type: ignore[attr-defined]
