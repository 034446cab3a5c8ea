"""Make a vector environment of a Gymnasium id, as RL Zoo does."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env as sb3_make_vec_env
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage

from rl_infonce.checks import check_count
from rl_infonce.environments.ids import make_env


def make_vec_env(name: str, n_envs: int, *, seed: int) -> VecEnv:
    """Return `n_envs` copies of an environment in this process, each in SB3's `Monitor`.

    Args:
        name: A Gymnasium id, also "module:Id".
        n_envs: Number of copies, at least 1.
        seed: Seed of the first copy; the i-th gets `seed + i`.

    Raises:
        ValueError: If there is no such environment, it cannot be made, or what is observed has no
            size, as text has none.
    """

    def make() -> gym.Env[Any, Any]:
        env = make_env(name)
        check_sizes(env.observation_space, name)
        return env

    check_count("n_envs", n_envs)
    env: VecEnv = sb3_make_vec_env(make, n_envs, seed=seed)
    return env


def check_sizes(space: gym.Space[Any], name: str) -> None:
    """Raise unless a space, or each entry of a Dict or Tuple, holds arrays of one size."""
    entries = [space]
    if isinstance(space, spaces.Dict):
        entries = list(space.spaces.values())
    elif isinstance(space, spaces.Tuple):
        entries = list(space.spaces)
    for each in entries:
        if each.shape is None:
            raise ValueError(
                f"Expected observations of {name} to be arrays of one size, or a dictionary of "
                f"them, got {each}. Make one of it in a wrapper of your own, and register the "
                "wrapped environment."
            )


def normalized(env: VecEnv, *, gamma: float) -> VecNormalize:
    """Return an environment whose rewards and vectors are normalised by running statistics.

    Images stay as they are, because policies divide them by 255 themselves.

    Args:
        env: What is normalised.
        gamma: Discount of the returns by whose scale rewards are divided, that of the algorithm.
    """
    space = env.observation_space
    entries = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    if any(map(_has_channels_last, entries)):
        # SB3 would do so around VecNormalize, whose original observations replay buffers keep.
        env = VecTransposeImage(env)
    if not isinstance(space, spaces.Dict):
        return VecNormalize(env, norm_obs=_is_vector(space), gamma=gamma)
    keys = [key for key, each in space.spaces.items() if _is_vector(each)]
    return VecNormalize(env, norm_obs=bool(keys), norm_obs_keys=keys, gamma=gamma)


def _has_channels_last(space: gym.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or not is_image_space(space):
        return False
    return not is_image_space_channels_first(space)


def _is_vector(space: gym.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and not is_image_space(space)
