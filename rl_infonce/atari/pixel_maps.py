"""Where on the screen an object is whose position a byte of RAM holds."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import NamedTuple

from rl_infonce.atari.games import resolve_game

__all__ = ["SCREEN_SHAPE", "PixelMap", "load_pixel_maps"]

SCREEN_SHAPE = (210, 160)
"""Height and width of the screen in pixels."""


class PixelMap(NamedTuple):
    """From a byte to the centre of the object, in pixels of the 210x160 screen: byte + offset.

    Attributes:
        axis: "x", to the right, or "y", downwards.
        offset: In pixels, measured to within one and a half.
    """

    axis: str
    offset: float


def load_pixel_maps(game: str) -> dict[str, PixelMap]:
    """Return the pixel map of every position that was measured; empty for most games.

    Args:
        game: In any spelling that `resolve_game` understands.

    Returns:
        Name of the variable, as in `load_labels`, to its map.

    Raises:
        TypeError: If `game` is not a string.
        ValueError: If there is no such game.

    Example:
        >>> load_pixel_maps("pong")["ball_x"]
        PixelMap(axis='x', offset=-48.5)
    """
    return dict(_table().get(resolve_game(game), {}))


@cache
def _table() -> dict[str, dict[str, PixelMap]]:
    file = resources.files("rl_infonce.atari").joinpath("pixel_maps.json")
    games = json.loads(file.read_text(encoding="utf-8"))["games"]
    return {
        game: {name: PixelMap(**entry) for name, entry in variables.items()}
        for game, variables in games.items()
    }
