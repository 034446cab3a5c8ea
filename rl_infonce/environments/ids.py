"""Find what a Gymnasium id stands for, and say what is wrong with one that stands for nothing."""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rl_infonce.atari.games import games, resolve_game
from rl_infonce.environments.families import as_images, import_family, made_with, way_out

_MUJOCO = "gymnasium.envs.mujoco"


def is_atari(name: str) -> bool:
    """Return whether a name is one of an Atari game, in a spelling that `resolve_game` knows.

    An id with a module, "my_envs:Pong-v0", never is, nor one of another environment that Gymnasium
    registers, "Blackjack-v1".

    Example:
        >>> is_atari("ALE/Pong-v5"), is_atari("my_envs:Pong-v0"), is_atari("CartPole-v1")
        (True, False, False)
    """
    spec = gym.registry.get(name)
    if ":" in name or (spec is not None and not _entry_point(spec).startswith("ale_py")):
        return False
    try:
        return resolve_game(name) in games()
    except ValueError:
        return False


def is_no_game(name: str) -> bool:
    """Return whether Gymnasium knows an id already, and that it is no Atari game's.

    The module that it may name is not imported.
    """
    return name.rpartition(":")[2] in gym.registry and not is_atari(name)


def find_spec(name: str) -> EnvSpec:
    """Return what Gymnasium registers under an id, after importing the module that it may name.

    Args:
        name: An id with its version, "CartPole-v1", or "my_envs:Maze-v0", which also names the
            module whose import registers it.

    Raises:
        ValueError: If the module cannot be imported, or there is no such id; the message names
            the nearest ones.

    Example:
        >>> find_spec("CartPole-v1").max_episode_steps
        500
    """
    module, _, env_id = name.rpartition(":")
    if module:
        _import(module, name)
    import_family(env_id)
    spec = gym.registry.get(env_id)
    if spec is None:
        raise ValueError(
            f"Expected `--env` to be an id of an environment in Gymnasium's registry, got "
            f"{name!r}.{_near(env_id)} An id that a package registers is written module:Id."
        )
    if _entry_point(spec).startswith("ale_py"):
        resolve_game(env_id)  # which says why it is no game that can be played here
        raise ValueError(f"Expected `--game` for an Atari game, got --env {name}.")
    return spec


def make_env(name: str) -> gym.Env[Any, Any]:
    """Return one environment with the wrappers that Gymnasium gives it, and its family's.

    Args:
        name: An id that `find_spec` understands.

    Raises:
        ValueError: If there is no such id, a package that it needs is missing, or the
            environment cannot be made.
    """
    spec = find_spec(name)
    try:
        return as_images(spec.id, gym.make(spec, **made_with(spec.id)))
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        is_mujoco = _entry_point(spec).startswith(_MUJOCO) and sys.modules.get("mujoco") is None
        # Gymnasium says how to install its own extra, which may be another version.
        told = _sentence(error).split(", run `pip")[0].rstrip(".") + "."
        extra = (
            ' Install it with `pip install "rl-infonce[mujoco]"`.'
            if is_mujoco
            else way_out(spec.id)
        )
        raise ValueError(f"Expected the packages that {name} needs, got: {told}{extra}") from error
    except Exception as error:  # of a user's constructor, or of a first picture without OpenGL
        raise ValueError(
            f"Expected an environment of {name}, got {type(error).__name__}: {error}"
        ) from error


def _import(module: str, name: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"Expected to import {module}, which `--env` {name} names, got: {_sentence(error)} "
            "Install its package, or add the folder of the module to PYTHONPATH."
        ) from error
    except Exception as error:  # the module's own, e.g. of its syntax
        raise ValueError(
            f"Expected to import {module}, which `--env` {name} names, got "
            f"{type(error).__name__}: {_sentence(error)} Mend the module."
        ) from error


def _near(env_id: str) -> str:
    known = [spec.id for spec in gym.registry.values() if not _entry_point(spec).startswith("ale")]
    near = get_close_matches(env_id, [*known, *games()], n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def _entry_point(spec: EnvSpec) -> str:
    return spec.entry_point if isinstance(spec.entry_point, str) else ""


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".") + "."
