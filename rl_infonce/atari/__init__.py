"""The only package that knows ale_py: games, RAM labels, frames, the vector environment.

`AtariVecEnv` and `make_atari_vec_env` are imported at first use, so that looking up a game name
does not wait for torch and Stable-Baselines3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_infonce.atari.collect import collect
from rl_infonce.atari.games import games, resolve_game
from rl_infonce.atari.labelled_frames import LabelledFrames, load_frames
from rl_infonce.atari.labels import (
    decode,
    label_versions,
    labelled_games,
    labels_hash,
    load_labels,
)
from rl_infonce.atari.pixel_maps import (
    PixelMap,
    load_pixel_maps,
    screen_positions,
    to_pixels,
)

if TYPE_CHECKING:
    from rl_infonce.atari.make_vec_env import make_atari_vec_env
    from rl_infonce.atari.vec_env import AtariVecEnv

__all__ = [
    "AtariVecEnv",
    "LabelledFrames",
    "PixelMap",
    "collect",
    "decode",
    "games",
    "label_versions",
    "labelled_games",
    "labels_hash",
    "load_frames",
    "load_labels",
    "load_pixel_maps",
    "make_atari_vec_env",
    "resolve_game",
    "screen_positions",
    "to_pixels",
]


def __getattr__(name: str) -> Any:
    """Import the vector environment at its first use."""
    if name in {"AtariVecEnv", "make_atari_vec_env"}:
        from rl_infonce.atari import make_vec_env

        return getattr(make_vec_env, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
