"""Packages of environments whose observations need their usual wrappers: ViZDoom and MiniGrid.

What agents see is an image: ViZDoom's screen as in Mnih et al. 2015 (gray, 84x84, four frames,
each action four times), and MiniGrid's view of the agent in colour, 56x56.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium import spaces, wrappers

_SIZE, _STACK, _SKIP = (84, 84), 4, 4


class Family(NamedTuple):
    """Environments whose ids begin alike, the module that registers them, and its extra."""

    module: str
    extra: str


_VIZDOOM = Family("vizdoom.gymnasium_wrapper", "vizdoom")
_MINIGRID = Family("minigrid", "minigrid")
_FAMILIES = {"Vizdoom": _VIZDOOM, "MiniGrid-": _MINIGRID, "BabyAI-": _MINIGRID}


def import_family(env_id: str) -> None:
    """Import the module that registers an id; ValueError names the extra that brings it."""
    family = _family_of(env_id)
    if family is None:
        return
    try:
        importlib.import_module(family.module)
    except ImportError as error:
        raise ValueError(
            f"Expected the packages that {env_id} needs, got: {error}. "
            f'Install them: pip install "rl-infonce[{family.extra}]".'
        ) from error


def made_with(env_id: str) -> dict[str, Any]:
    """Return arguments with which Gymnasium makes an environment."""
    return {"frame_skip": _SKIP} if _family_of(env_id) is _VIZDOOM else {}


def as_images(env_id: str, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an environment whose observations are images if it is of such a family."""
    family = _family_of(env_id)
    if family is _VIZDOOM:
        return screens(env)
    if family is _MINIGRID:
        from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

        seen: gym.Env[Any, Any] = ImgObsWrapper(RGBImgPartialObsWrapper(env))
        return seen
    return env


def screens(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an environment that shows stacked gray images [4, 84, 84] of its `screen`."""
    space = env.observation_space
    assert isinstance(space, spaces.Dict)  # noqa: S101 (of ViZDoom)
    screen = wrappers.TransformObservation(env, lambda seen: seen["screen"], space["screen"])
    small = wrappers.ResizeObservation(screen, _SIZE)
    return wrappers.FrameStackObservation(wrappers.GrayscaleObservation(small), _STACK)


def _family_of(env_id: str) -> Family | None:
    return next((each for start, each in _FAMILIES.items() if env_id.startswith(start)), None)
