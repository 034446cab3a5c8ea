"""Where on the screen an object is whose position a byte of RAM holds.

Games, versions and errors are those of `rl_infonce.atari.labels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.atari.games import resolve_game
from rl_infonce.atari.labels import load_labels
from rl_infonce.checks import check_choice
from rl_infonce.files.json_text import packaged_json

SCREEN_SHAPE = (210, 160)
"""Height and width of the screen in pixels."""


class PixelMap(NamedTuple):
    """From a byte to the centre of the object on the 210x160 screen: scale * position + offset.

    Attributes:
        axis: "x", to the right, or "y", downwards.
        offset: In pixels, measured to within two.
        scale: Pixels per unit; negative where the byte counts the other way.
        coding: "binary" where the position is the byte itself. "nibbles" where it is kept as the
            hardware is told it, 15 per unit of the low nibble less the signed high nibble.
            "split_nibbles", of Asteroids, likewise, but the last bit of the low nibble, when 0,
            stands for 87 pixels.
    """

    axis: str
    offset: float
    scale: float = 1.0
    coding: str = "binary"


def load_pixel_maps(game: str, version: str = "corrected") -> dict[str, PixelMap]:
    """Return the pixel map of every position that was measured; empty for some games.

    Returns:
        Name of the variable, as in `load_labels`, to its map.

    Example:
        >>> load_pixel_maps("pong")["ball_x"]
        PixelMap(axis='x', offset=-48.5, scale=1.0, coding='binary')
    """
    maps = _table().get(resolve_game(game), {})
    labels = load_labels(game, version).items()
    return {name: maps[variable.byte] for name, variable in labels if variable.byte in maps}


def to_pixels(
    values: npt.ArrayLike, game: str, variable: str, version: str = "corrected"
) -> npt.NDArray[np.float64] | None:
    """Return where the centre of the object is on the 210x160 screen, None where not measured.

    What is not in play is often parked beyond the edges: only positions on the screen are seen.

    Args:
        values: [K] integers in 0..255, as `decode` or a probe's prediction holds them.
        game: In any spelling.
        variable: One of `load_labels(game, version)`.
        version: One of `label_versions()`.

    Returns:
        [K] pixels along the axis of the variable's map.
    """
    check_choice("variable", variable, tuple(load_labels(game, version)))
    found = load_pixel_maps(game, version).get(variable)
    if found is None:
        return None
    position = _position(np.asarray(values, np.float64), found.coding)
    return position * found.scale + found.offset


def screen_positions(
    labels: Mapping[str, npt.NDArray[Any]], game: str, version: str = "corrected"
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the positions that can be seen, of the variables whose map was measured.

    Args:
        labels: Variable to [K] integers in 0..255, of `load_labels(game, version)`.
        game: In any spelling.
        version: One of `label_versions()`.

    Returns:
        Variable to [K] pixels, NaN where the object is beyond the edge of the screen; variables
        without a map are missing.
    """
    found = {}
    for name, pixel_map in load_pixel_maps(game, version).items():
        if name in labels:
            pixels = to_pixels(labels[name], game, name, version)
            assert pixels is not None  # noqa: S101 (the variable has a map)
            size = SCREEN_SHAPE[0] if pixel_map.axis == "y" else SCREEN_SHAPE[1]
            found[name] = np.where((pixels >= 0) & (pixels < size), pixels, np.nan)
    return found


def _position(values: npt.NDArray[np.float64], coding: str) -> npt.NDArray[np.float64]:
    if coding == "binary":
        return values
    low = values % 16
    high = (values - low) / 16
    coarse = 15 * low if coding == "nibbles" else 15 * (low // 2) + 87 * (1 - low % 2)
    position: npt.NDArray[np.float64] = coarse - high + 16 * (high >= 8)
    return position


@cache
def _table() -> dict[str, dict[int, PixelMap]]:
    """Return game -> byte -> map."""
    games = packaged_json("rl_infonce.atari", "pixel_maps.json")["games"]
    return {
        game: {int(byte): PixelMap(**entry) for byte, entry in maps.items()}
        for game, maps in games.items()
    }
