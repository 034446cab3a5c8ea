"""Packages of environments whose observations need their usual wrappers.

What agents see is an image: ViZDoom's screen as in Mnih et al. 2015 (gray, 84x84, four frames,
each action four times), MiniGrid's view of the agent in colour, 56x56, and a picture of
dm_control's scene (gray, 84x84, four frames).
"""

from __future__ import annotations

import importlib
import re
from importlib.metadata import version
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium import spaces, wrappers

from rl_infonce.environments.control_suite import check_mujoco, drawn_at, pictures

_SIZE, _STACK, _SKIP = (84, 84), 4, 4


class Family(NamedTuple):
    """Environments whose ids begin alike, the module that registers them, and its extra."""

    module: str
    extra: str
    also: str = ""


_VIZDOOM = Family("vizdoom.gymnasium_wrapper", "vizdoom")
_MINIGRID = Family("minigrid", "minigrid")
_DM_CONTROL = Family(
    "shimmy.dm_control_compatibility",
    "dmc",
    " Without a screen, set MUJOCO_GL=egl (Debian: libegl1) or MUJOCO_GL=osmesa (libosmesa6).",
)
_FAMILIES = {
    "Vizdoom": _VIZDOOM,
    "MiniGrid-": _MINIGRID,
    "BabyAI-": _MINIGRID,
    # of the Control Suite: domain-task
    r"dm_control/\w+-(?!v\d)": _DM_CONTROL,
}


def import_family(env_id: str) -> None:
    """Import the module that registers an id; ValueError names the extra that brings it."""
    family = _family_of(env_id)
    if family is None:
        return
    try:
        importlib.import_module(family.module)
        if family is _DM_CONTROL:
            check_mujoco(version("mujoco"))
    except (ImportError, AttributeError, RuntimeError) as error:  # the latter two of OpenGL
        raise ValueError(
            f"Expected the packages that {env_id} needs, got: {str(error).rstrip('.')}."
            f"{way_out(env_id)}"
        ) from error


def way_out(env_id: str) -> str:
    """Return the sentence that says how to install what an id needs, "" for one of no family."""
    family = _family_of(env_id)
    if family is None:
        return ""
    return f' Install them with `pip install "rl-infonce[{family.extra}]"`.{family.also}'


def made_with(env_id: str) -> dict[str, Any]:
    """Return arguments with which Gymnasium makes an environment."""
    family = _family_of(env_id)
    if family is _VIZDOOM:
        return {"frame_skip": _SKIP}
    if family is _DM_CONTROL:
        return drawn_at(env_id, _SIZE)
    return {}


def as_images(env_id: str, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an environment whose observations are images if it is of such a family."""
    family = _family_of(env_id)
    if family is _VIZDOOM:
        return screens(env)
    if family is _DM_CONTROL:
        return _gray_stack(pictures(env_id, env))
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
    return _gray_stack(wrappers.ResizeObservation(screen, _SIZE))


def _gray_stack(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return wrappers.FrameStackObservation(wrappers.GrayscaleObservation(env), _STACK)


def _family_of(env_id: str) -> Family | None:
    found = (each for start, each in _FAMILIES.items() if re.match(start, env_id))
    return next(found, None)
