"""Environments that go on from a state are bit for bit those that were never interrupted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from rl_infonce import make_atari_vec_env
from rl_infonce.files.state_file import pack_state, unpack_state
from rl_infonce.resuming.env_state import UnknownStateError, get_env_state, set_env_state
from rl_infonce.resuming.resume_callback import ResumeCallback
from rl_infonce.runs.checkpoints import latest_checkpoint
from tests.files.test_state_file import assert_same
from tests.further import with_further
from tests.sb3.fakes import StampedDictEnv, StampedEnv


def sticky_atari(seed: int) -> Any:
    def make() -> Any:
        game = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.25)
        game = wrappers.AtariPreprocessing(game, frame_skip=4, noop_max=10)
        return wrappers.FrameStackObservation(game, 4)

    env = DummyVecEnv([make, make])
    env.seed(seed)
    return env


def pendulums(n_envs: int, seed: int | None = None) -> DummyVecEnv:
    env = DummyVecEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=50)] * n_envs)
    env.seed(seed)
    return env


def wrapped_pendulum(seed: int) -> Any:
    def make() -> Any:
        game = wrappers.RescaleAction(pendulums(1).envs[0], np.float32(-1), np.float32(1))
        scaled: Any = wrappers.RescaleObservation(game, np.float32(-1), np.float32(1))
        return wrappers.TimeAwareObservation(wrappers.FlattenObservation(scaled))

    env = DummyVecEnv([make])
    env.seed(seed)
    return env


ENVS: dict[str, Callable[[int], Any]] = {
    "cartpole": lambda seed: make_vec_env("CartPole-v1", 3, seed=seed),
    "pendulum": lambda seed: VecNormalize(VecMonitor(pendulums(2, seed))),
    "pendulum, wrapped": wrapped_pendulum,
    "acrobot": lambda seed: VecCheckNan(make_vec_env("Acrobot-v1", 2, seed=seed)),
    "mountain car": lambda seed: VecFrameStack(make_vec_env("MountainCar-v0", 2, seed=seed), 3),
    "mountain car, continuous": lambda seed: make_vec_env(
        "MountainCarContinuous-v0",
        1,
        seed=seed,
        wrapper_class=lambda game, **given: wrappers.TimeLimit(game, **given),
        wrapper_kwargs={"max_episode_steps": 60},
    ),
    "atari, SB3": lambda seed: VecTransposeImage(
        VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", 2, seed=seed), 4)
    ),
    "atari, Gymnasium": sticky_atari,
    "atari, native": lambda seed: make_atari_vec_env("breakout", 2, seed=seed),
}


def play(env: Any, n_steps: int, seed: int) -> list[Any]:
    env.action_space.seed(seed)
    seen = []
    for _ in range(n_steps):
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        observations, rewards, dones, infos = env.step(actions)
        for info in infos:
            info.get("episode", {}).pop("t", None)
        seen.append((np.array(observations), np.array(rewards), np.array(dones), list(infos)))
    return seen


MUJOCO = [
    spec.id
    for spec in gym.registry.values()
    if str(spec.entry_point).startswith("gymnasium.envs.mujoco") and spec.id.endswith("-v5")
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed")
@pytest.mark.parametrize("env_id", MUJOCO)
def test_the_physics_of_mujoco_goes_on(env_id: str) -> None:
    env = make_vec_env(env_id, 1, seed=0)
    env.reset()
    play(env, 70, seed=0)
    state = unpack_state(pack_state(get_env_state(env)))
    expected = play(env, 130, seed=1)
    again = make_vec_env(env_id, 1, seed=5)
    again.reset()
    play(again, 3, seed=2)
    set_env_state(again, state)
    assert_same(play(again, 130, seed=1), expected)


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.parametrize("name", with_further(ENVS, {"atari, SB3", "atari, Gymnasium"}))
def test_a_state_carries_on_where_it_was_taken(name: str) -> None:
    env = ENVS[name](0)
    env.reset()
    play(env, 130, seed=0)
    state = unpack_state(pack_state(get_env_state(env)))
    expected = play(env, 300, seed=1)
    if name != "acrobot":
        assert any(dones.any() for _, _, dones, _ in expected), "no reset was seen"
    again = ENVS[name](5)
    set_env_state(again, state)
    for one, other in zip(play(again, 300, seed=1), expected, strict=True):
        for i in range(3):
            assert np.array_equal(one[i], other[i])
        assert_same([info.get("episode") for info in one[3]], [i.get("episode") for i in other[3]])


def test_a_normalizer_of_rewards_alone_goes_on() -> None:
    def build(seed: int) -> VecNormalize:
        venv = DummyVecEnv([lambda: gym.make("CartPole-v1")])
        venv.seed(seed)
        return VecNormalize(venv, norm_obs=False)

    env = build(0)
    env.reset()
    play(env, 30, seed=0)
    state = unpack_state(pack_state(get_env_state(env)))
    again = build(5)
    set_env_state(again, state)
    assert again.ret_rms.mean == env.ret_rms.mean != 0
    np.testing.assert_array_equal(again.returns, env.returns)


def test_reading_a_state_moves_nothing_and_is_not_moved() -> None:
    env = ENVS["pendulum"](0)
    env.reset()
    state = get_env_state(env)
    before = pack_state(state)
    play(env, 20, seed=0)
    assert pack_state(state) == before
    set_env_state(env, state)
    seen = play(env, 20, seed=0)
    set_env_state(env, state)
    assert_same([each[:2] for each in play(env, 20, seed=0)], [each[:2] for each in seen])


class Counting(gym.Wrapper[Any, Any, Any, Any]):
    """A user's wrapper that takes part."""

    n_steps = 0

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        return self.env.step(action)

    def get_state(self) -> dict[str, int]:
        return {"n_steps": self.n_steps}

    def set_state(self, state: dict[str, int]) -> None:
        self.n_steps = state["n_steps"]


def test_a_class_of_the_user_takes_part_with_its_own_state() -> None:
    env = DummyVecEnv([lambda: Counting(gym.make("CartPole-v1"))])
    env.seed(0)
    env.reset()
    play(env, 12, seed=0)
    again = DummyVecEnv([lambda: Counting(gym.make("CartPole-v1"))])
    set_env_state(again, get_env_state(env))
    assert again.envs[0].n_steps == 12  # type: ignore[attr-defined]


class Twofold(Counting):
    """A user's wrapper whose observations are dictionaries."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Dict(
            {"seen": env.observation_space, "again": env.observation_space}
        )

    def reset(self, **given: Any) -> Any:
        seen, info = self.env.reset(**given)
        return {"seen": seen, "again": seen}, info

    def step(self, action: Any) -> Any:
        seen, *rest = super().step(action)
        return {"seen": seen, "again": seen}, *rest


def test_a_stack_of_dictionaries_goes_on() -> None:
    def stacked() -> VecFrameStack:
        env = DummyVecEnv([lambda: Twofold(gym.make("CartPole-v1"))])
        env.seed(0)
        return VecFrameStack(env, 3)

    env, again = stacked(), stacked()
    env.reset()
    play(env, 12, seed=0)
    state = unpack_state(pack_state(get_env_state(env)))
    expected = env.step(np.array([1]))[0]
    again.reset()
    set_env_state(again, state)
    found = again.step(np.array([1]))[0]
    assert isinstance(expected, dict)
    assert isinstance(found, dict)
    assert_same(dict(found), dict(expected))
    assert np.all(found["seen"][0, :4] != found["seen"][0, 4:8])


class Looking(gym.Wrapper[Any, Any, Any, Any]):
    """A user's wrapper whose `get_state` is something else."""

    def get_state(self) -> Any:
        return object()


class LookingAtMujoco(Looking):
    """One that also sets another state, as MuJoCo's environments do."""

    def set_state(self, positions: Any, velocities: Any) -> None:
        """Set the state of the physics."""


@pytest.mark.parametrize("kind", [Looking, LookingAtMujoco])
def test_a_get_state_that_is_not_for_this_is_not_called(kind: type[Looking]) -> None:
    env = DummyVecEnv([lambda: kind(gym.make("CartPole-v1"))])
    with pytest.raises(UnknownStateError, match=rf"got {kind.__name__}\. Give the class get_state"):
        get_env_state(env)


class VecOpaque(DummyVecEnv):
    """A user's vectorised environment whose state is an object."""

    def get_state(self) -> Any:
        return object()

    def set_state(self, state: Any) -> None:
        """Set nothing."""


class Opaque(Counting):
    """A user's wrapper whose state is an object."""

    def get_state(self) -> Any:
        return object()


@pytest.mark.parametrize("vectorised", [DummyVecEnv, VecOpaque])
def test_an_own_state_that_no_checkpoint_holds_is_named(vectorised: Any) -> None:
    env = vectorised([lambda: Opaque(gym.make("CartPole-v1"))])
    name = "VecOpaque" if vectorised is VecOpaque else "Opaque"
    with pytest.raises(UnknownStateError, match=rf"get_state\(\) of {name} .* got object"):
        get_env_state(env)


class Stub(Counting):
    """A user's wrapper that is to tell its state one day."""

    def get_state(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(("kind", "got"), [(Opaque, "TypeError"), (Stub, "NotImplementedError")])
def test_a_run_whose_environment_has_no_such_state_goes_on(
    tmp_path: Path, kind: type[Counting], got: str
) -> None:
    model = PPO("MlpPolicy", DummyVecEnv([lambda: kind(gym.make("CartPole-v1"))]), 1e-3, 16, 16)
    with pytest.warns(
        UserWarning, match=rf"cannot be resumed exactly: .*of {kind.__name__} to return .*{got}"
    ):
        model.learn(16, ResumeCallback(tmp_path, 8))
    assert latest_checkpoint(tmp_path).step == 16


def test_what_has_no_readable_state_is_named() -> None:
    with pytest.raises(UnknownStateError, match=r"got StampedDictEnv\. Give the class get_state"):
        get_env_state(DummyVecEnv([lambda: StampedDictEnv(StampedEnv())]))
    env = SubprocVecEnv([lambda: gym.make("CartPole-v1")])
    with pytest.raises(UnknownStateError, match=r"got SubprocVecEnv\. Use make_atari_vec_env"):
        get_env_state(env)
    env.close()


def test_arguments_for_windows_and_logs_are_the_new_ones() -> None:
    def build(mode: str | None, **logged: Any) -> Any:
        env = DummyVecEnv([lambda: Monitor(gym.make("CartPole-v1", render_mode=mode), **logged)])
        env.reset()
        return env

    env = build("rgb_array", info_keywords=("score",), allow_early_resets=False)
    state = get_env_state(env)
    again = build(None)
    for saved in (state, _as_stored_before(state)):
        set_env_state(again, saved)
        monitor = again.envs[0]
        assert monitor.unwrapped.render_mode is None
        assert (monitor.info_keywords, monitor.allow_early_resets) == ((), True)
        assert_same(monitor.unwrapped.state, env.envs[0].unwrapped.state)


def _as_stored_before(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as versions wrote it that took these arguments for state."""
    given = {"render_mode": "human", "info_keywords": ("score",), "allow_early_resets": False}
    (layer,) = state["layers"]
    (game,) = layer["envs"]
    parts = [{**part, "numbers": {**part["numbers"], **given}} for part in game]
    return {"layers": [{**layer, "envs": [parts]}]}


def test_an_environment_of_other_parts_is_refused() -> None:
    state = get_env_state(make_vec_env("CartPole-v1", 1, seed=0))
    with pytest.raises(ValueError, match=r"made of \['DummyVecEnv'\], got \['VecMonitor', 'Dummy"):
        set_env_state(VecMonitor(pendulums(1)), state)
    with pytest.raises(
        ValueError, match=r"Expected games made of \[.*'CartPoleEnv'\], got \[.*Pen"
    ):
        set_env_state(make_vec_env("Pendulum-v1", 1), state)
    with pytest.raises(ValueError, match=r"1 games, got 2"):
        set_env_state(make_vec_env("CartPole-v1", 2), state)


def test_the_history_of_all_episodes_is_no_state() -> None:
    env = make_vec_env("CartPole-v1", 1, seed=0)
    env.reset()
    for _ in range(300):
        env.step(np.array([0]))
    monitor = env.envs[0]  # type: ignore[attr-defined]
    assert len(monitor.episode_returns) > 10
    assert "episode_returns" not in str(get_env_state(env))
