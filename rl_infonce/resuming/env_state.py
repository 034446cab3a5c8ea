"""Read the state of vectorised environments as numbers and text, and set it again.

Users let their own environment, wrapper or vectorised environment take part by giving it
`get_state()`, which returns what `rl_infonce.files.state_file` can pack, and `set_state(state)`.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from gymnasium.envs import classic_control
from stable_baselines3.common import atari_wrappers
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvWrapper

from rl_infonce.files.state_file import pack_state
from rl_infonce.resuming.mujoco_state import get_mujoco_state, is_mujoco, set_mujoco_state

# Every number that a step of these can change is an attribute; tests play each of them twice.
_KNOWN_ENVS = (
    classic_control.AcrobotEnv,
    classic_control.CartPoleEnv,
    classic_control.Continuous_MountainCarEnv,
    classic_control.MountainCarEnv,
    classic_control.PendulumEnv,
    wrappers.AddRenderObservation,
    wrappers.AtariPreprocessing,
    wrappers.FlattenObservation,
    wrappers.FrameStackObservation,
    wrappers.GrayscaleObservation,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RescaleAction,
    wrappers.RescaleObservation,
    wrappers.TimeAwareObservation,
    wrappers.TimeLimit,
    Monitor,
    atari_wrappers.AtariWrapper,
    atari_wrappers.ClipRewardEnv,
    atari_wrappers.EpisodicLifeEnv,
    atari_wrappers.FireResetEnv,
    atari_wrappers.MaxAndSkipEnv,
    atari_wrappers.NoopResetEnv,
    atari_wrappers.StickyActionEnv,
    atari_wrappers.WarpFrame,
)
_CHANGING: dict[type, tuple[str, ...]] = {
    VecCheckNan: (),
    VecFrameStack: (),
    VecMonitor: ("episode_returns", "episode_lengths", "episode_count"),
    VecNormalize: ("returns", "old_reward", "old_obs"),
    VecTransposeImage: (),
}
_ARGUMENTS: dict[type, tuple[str, ...]] = {
    atari_wrappers.MaxAndSkipEnv: ("_skip",),
    atari_wrappers.NoopResetEnv: ("noop_max",),
    atari_wrappers.StickyActionEnv: ("action_repeat_probability",),
    wrappers.AtariPreprocessing: (
        *("noop_max", "frame_skip", "terminal_on_life_loss", "grayscale_obs", "scale_obs"),
    ),
}
"""Attributes of wrappers that no step changes."""
_MOMENTS = ("mean", "var", "count")
_HISTORY = {"episode_returns", "episode_lengths", "episode_times"}
"""What SB3's `Monitor` keeps of all episodes, which no step reads and which grows without end."""
_NO_STEP_READS = {
    *("render_mode", "screen", "clock", "fullpath", "_disable_render_order_enforcing"),
    *("info_keywords", "reset_keywords", "allow_early_resets"),
    *("_ezpickle_args", "_ezpickle_kwargs", "_saved_kwargs"),
}
"""Arguments for windows, files and logs, and copies of arguments, which the user may change."""
_NOT_STATE = {"env", "ale", "spec", "t_start", *_HISTORY, *_NO_STEP_READS}


class UnknownStateError(TypeError):
    """The state of an environment, which the message names, cannot be read."""


def get_env_state(env: VecEnv) -> dict[str, Any]:
    """Return the state of an environment; UnknownStateError names the part that cannot be read."""
    return {"layers": [_layer_state(layer) for layer in _layers(env)]}


def set_env_state(env: VecEnv, state: Mapping[str, Any]) -> None:
    """Set the state of an environment made of the same classes; the environment needs no reset."""
    for layer, each in _matched("an environment", env, state["layers"]):
        _set_layer_state(layer, each)


def wrapper_settings(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Return the arguments of the wrappers around a game that decide what it plays."""
    return {
        f"{type(layer).__name__}.{name.strip('_')}": getattr(layer, name)
        for layer in _layers(env)
        for name in _ARGUMENTS.get(type(layer), ())
    }


def has_own_state(part: Any) -> bool:
    """Return whether a class lets its state be read and set, and not its own observation alone."""
    try:
        inspect.signature(type(part).get_state).bind(part)
        inspect.signature(type(part).set_state).bind(part, {})
    except (AttributeError, TypeError):
        return False
    return True


def _own_state(part: Any) -> Any:
    """Return the state that a class tells, which a checkpoint must be able to hold."""
    try:
        state = part.get_state()
        pack_state(state)
    except Exception as error:  # the class is the user's, and training goes on without its state
        raise UnknownStateError(
            f"Expected get_state() of {type(part).__name__} to return what a checkpoint can hold, "
            f"got: {error!r}"
        ) from error
    return state


def normalizers(env: VecEnv | None) -> list[VecNormalize]:
    """Return every `VecNormalize` around an environment, the outermost first."""
    return [each for each in _layers(env) if isinstance(each, VecNormalize)]


def get_moments(normalizer: VecNormalize) -> dict[str, Any]:
    """Return the running means and variances of observations and returns, and their counts."""
    kept = [name for name in ("obs_rms", "ret_rms") if hasattr(normalizer, name)]
    return {name: _moments(getattr(normalizer, name)) for name in kept}


def set_moments(env: VecEnv | None, statistics: Sequence[Mapping[str, Any]]) -> None:
    """Set, in an environment that begins anew, the running moments of each normalizer.

    They are set where something is normalised now and was then.
    """
    for normalizer, moments in zip(normalizers(env), statistics, strict=False):
        for name in moments.keys() & get_moments(normalizer).keys():
            own = getattr(normalizer, name)
            if isinstance(own, dict):
                own = {key: own[key] for key in own.keys() & moments[name].keys()}
            _set_moments(own, moments[name])


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment and those inside it, the outermost first."""
    yield env
    while isinstance(env, VecEnvWrapper | gym.Wrapper):
        env = env.venv if isinstance(env, VecEnvWrapper) else env.env
        yield env


def _matched(what: str, env: Any, states: list[dict[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield each layer of an environment with its state, after comparing all their classes."""
    layers = list(_layers(env))
    found = [type(layer).__name__ for layer in layers]
    expected = [each["class"] for each in states]
    if found != expected:
        raise ValueError(f"Expected {what} made of {expected}, got {found}.")
    yield from zip(layers, states, strict=True)


def _layer_state(layer: Any) -> dict[str, Any]:
    name = type(layer).__name__
    if has_own_state(layer):
        return {"class": name, "own": _own_state(layer)}
    if type(layer) is DummyVecEnv:
        games = [[_part_state(part) for part in _layers(env)] for env in layer.envs]
        return {"class": name, "seeds": list(layer._seeds), "envs": games}
    if type(layer) not in _CHANGING:
        raise UnknownStateError(
            f"Expected environments whose state can be read, got {name}. Use make_atari_vec_env or "
            "DummyVecEnv, or give the class get_state() and set_state(state)."
        )
    # VecNormalize has no `old_obs` before its first reset
    present = [key for key in _CHANGING[type(layer)] if key in vars(layer)]
    state = {key: deepcopy(getattr(layer, key)) for key in present}
    return {"class": name, **state, **_inner_state(layer)}


def _inner_state(layer: Any) -> dict[str, Any]:
    """Return what changes inside an attribute of a layer."""
    if isinstance(layer, VecFrameStack):
        return {"stack": {key: deepcopy(each.stacked_obs) for key, each in _stacks(layer)}}
    if isinstance(layer, VecNormalize):
        return {"means": get_moments(layer)}
    return {}


def _set_layer_state(layer: Any, state: Mapping[str, Any]) -> None:
    if "own" in state:
        layer.set_state(state["own"])
        return
    if type(layer) is DummyVecEnv:
        _set_games(layer, state)
    else:
        for key in state.keys() & set(_CHANGING[type(layer)]):
            setattr(layer, key, deepcopy(state[key]))
    if isinstance(layer, VecFrameStack):
        for key, each in _stacks(layer):
            each.stacked_obs = deepcopy(state["stack"][key])
    if isinstance(layer, VecNormalize):
        for key, moments in state["means"].items():
            _set_moments(getattr(layer, key), moments)


def _stacks(layer: VecFrameStack) -> Iterator[tuple[str, Any]]:
    """Yield the stacks of frames by the entry of the observation; "" stands for all of it."""
    stacks = getattr(layer.stacked_obs, "sub_stacked_observations", {"": layer.stacked_obs})
    yield from stacks.items()


def _set_games(env: DummyVecEnv, state: Mapping[str, Any]) -> None:
    if len(state["envs"]) != len(env.envs):
        raise ValueError(f"Expected {len(state['envs'])} games, got {len(env.envs)}.")
    env._seeds = list(state["seeds"])
    for game, states in zip(env.envs, state["envs"], strict=True):
        for part, each in _matched("games", game, states):
            _set_part_state(part, each)


def _part_state(part: Any) -> dict[str, Any]:
    name = type(part).__name__
    if has_own_state(part):
        return {"class": name, "own": _own_state(part)}
    if not (_is_atari(part) or is_mujoco(part) or type(part) in _KNOWN_ENVS):
        raise UnknownStateError(
            f"Expected games whose state can be read, got {name}. Give the class get_state() and "
            "set_state(state)."
        )
    numbers, streams = {}, {}
    for key, value in vars(part).items():
        if isinstance(value, np.random.Generator):
            streams[key] = value.bit_generator.state
        elif key not in _NOT_STATE and _is_plain(value):
            numbers[key] = deepcopy(value)
    state = {"class": name, "numbers": numbers, "streams": streams}
    if _is_atari(part):
        from rl_infonce.atari.ale_state import get_ale_state

        state["ale"] = get_ale_state(part.ale)
    if is_mujoco(part):
        state["mujoco"] = get_mujoco_state(part)
    return state


def _set_part_state(part: Any, state: Mapping[str, Any]) -> None:
    if "own" in state:
        part.set_state(state["own"])
        return
    for key, value in state["numbers"].items():
        if key not in _NOT_STATE:  # which former versions stored
            setattr(part, key, deepcopy(value))
    for key, stream in state["streams"].items():
        generator = np.random.Generator(np.random.PCG64())
        generator.bit_generator.state = stream
        setattr(part, key, generator)
    if "ale" in state:
        from rl_infonce.atari.ale_state import set_ale_state

        set_ale_state(part.ale, state["ale"])
    if "mujoco" in state:
        set_mujoco_state(part, state["mujoco"])


def _is_atari(part: Any) -> bool:
    kind = type(part)
    return (kind.__module__, kind.__name__) == ("ale_py.env", "AtariEnv")


def _is_plain(value: Any) -> bool:
    """Return whether a checkpoint gives a value back as it was, with its type."""
    if type(value) in (list, tuple, deque):
        return all(_is_plain(each) for each in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf"
    return value is None or type(value) in (bool, int, float, str)


def _moments(statistics: Any) -> Any:
    if isinstance(statistics, dict):
        return {key: _moments(each) for key, each in statistics.items()}
    return {key: deepcopy(getattr(statistics, key)) for key in _MOMENTS}


def _set_moments(statistics: RunningMeanStd | dict[str, RunningMeanStd], moments: Any) -> None:
    if isinstance(statistics, dict):
        for key, each in statistics.items():
            _set_moments(each, moments[key])
        return
    for key in _MOMENTS:
        setattr(statistics, key, deepcopy(moments[key]))
