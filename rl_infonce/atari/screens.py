"""What a game of `make_atari_vec_env` looked like: played again, in colour and full size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from ale_py.vector_env import AtariVectorEnv

from rl_infonce.atari.emulator import game_facts
from rl_infonce.atari.vec_env import game_rules


def replay_screens(state: Mapping[str, Any], index: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the screens [H, W, 3] of a game, from its first observation to its last.

    The agent's images are small and gray. Seeds and actions decide what happens, so the same game
    is played once more by an emulator that shows all: a screen is the instant of the newest image
    in the agent's stack. What moved between its last two frames may look otherwise: their maximum
    is taken by colour here, and of gray for the agent.

    Args:
        state: Of `AtariVecEnv.get_state()`.
        index: Of the game; its first one after the last reset is shown, as far as it went.

    Raises:
        IndexError: If there is no such game, or the environment was never reset.
        ValueError: If the last reset went on with random numbers from before it.
    """
    settings, segment = state["settings"], state["history"][-1]
    seed = int(segment["seeds"][index])
    if seed < 0:
        raise ValueError("Expected `state` of an environment that was reset once, got a later one.")
    emulator = _colour_emulator(settings)
    screens, _ = emulator.reset(seed=np.array([seed]))
    yield np.array(screens[0, -1])
    for action in np.asarray(segment["actions"], np.int64)[:, index]:
        screens, _, terminated, truncated, info = emulator.step(action[None])
        if terminated[0] or truncated[0]:  # `screens` is of the next game already
            yield np.array(info["final_obs"][0, -1])
            return
        yield np.array(screens[0, -1])


def _colour_emulator(settings: Mapping[str, Any]) -> AtariVectorEnv:
    height, width = game_facts(settings["game"]).screen_shape
    return AtariVectorEnv(
        settings["game"],
        1,
        img_height=height,
        img_width=width,
        grayscale=False,
        stack_num=1,
        **game_rules(settings),
    )
