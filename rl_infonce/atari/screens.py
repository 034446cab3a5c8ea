"""Show a game of `make_atari_vec_env` in colour and full size by playing it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from ale_py.vector_env import AtariVectorEnv

from rl_infonce.atari.emulator import game_facts
from rl_infonce.atari.make_vec_env import game_rules


def replay_screens(state: Mapping[str, Any], index: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the screens [H, W, 3] of a game, from its first observation to its last.

    The agent's images are small and gray. Seeds and actions decide what happens, so an emulator
    plays the same game once more and shows everything: a screen is from the instant of the newest
    image in the agent's stack. What moved between its last two frames may look different, because
    their maximum is taken by colour here, and over gray for the agent.

    `state` is what `AtariVecEnv.get_state()` returned; of environment `index`, the first game after
    the last reset is shown.
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
        if terminated[0] or truncated[0]:  # `screens` shows the next game already
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
