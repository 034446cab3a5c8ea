"""Find on the screen the object whose position a byte of RAM holds."""

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

SCREEN_SHAPE = (210, 160)  # height and width in pixels


class PixelMap(NamedTuple):
    """A map to the centre of an object on the 210x160 screen: scale * position + offset.

    Attributes:
        axis: "x", to the right, or "y", downwards.
        offset: Offset in pixels, measured to within two.
        scale: Pixels per unit; negative where the byte counts the other way.
        coding: "binary" where the position is the byte itself. "nibbles" where the byte has the
            hardware's form, 15 per unit of the low nibble less the signed high nibble.
            "split_nibbles", in Asteroids, is the same, but the last bit of the low nibble stands
            for 87 pixels when it is 0.
    """

    axis: str
    offset: float
    scale: float = 1.0
    coding: str = "binary"


def load_pixel_maps(game: str, version: str = "corrected") -> dict[str, PixelMap]:
    """Return the pixel map of every position that was measured; empty for some games.

    Args:
        game: Any spelling that `resolve_game` understands.
        version: One of `label_versions()`.

    Returns:
        The maps by name of the variable, as in `load_labels`.

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
    """Return the centres of an object on the 210x160 screen; None for an unmeasured variable.

    An object that is not in play is often parked beyond the edges of the screen.

    Args:
        values: K integers [K] in 0..255, as `decode` or a probe's prediction holds them.
        game: Any spelling that `resolve_game` understands.
        variable: One of `load_labels(game, version)`.
        version: One of `label_versions()`.

    Returns:
        Pixels [K] along the axis of the variable's map.

    Raises:
        TypeError: If `game` is not a string.
        ValueError: If there is no such game, version or variable, or the game has no labels.
    """
    check_choice("variable", variable, tuple(load_labels(game, version)))
    found = load_pixel_maps(game, version).get(variable)
    return None if found is None else _pixels(values, found)


def screen_positions(
    labels: Mapping[str, npt.NDArray[Any]], game: str, version: str = "corrected"
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the visible positions of the variables whose map was measured.

    Args:
        labels: Integers [K] in 0..255 by variable of `load_labels(game, version)`.
        game: Any spelling that `resolve_game` understands.
        version: One of `label_versions()`.

    Returns:
        Pixels [K] by variable, NaN where the object is beyond the edge of the screen; variables
        without a map are missing.
    """
    found = {}
    for name, pixel_map in load_pixel_maps(game, version).items():
        if name in labels:
            pixels = _pixels(labels[name], pixel_map)
            size = SCREEN_SHAPE[0] if pixel_map.axis == "y" else SCREEN_SHAPE[1]
            found[name] = np.where((pixels >= 0) & (pixels < size), pixels, np.nan)
    return found


def _pixels(values: npt.ArrayLike, pixel_map: PixelMap) -> npt.NDArray[np.float64]:
    position = _position(np.asarray(values, np.float64), pixel_map.coding)
    return position * pixel_map.scale + pixel_map.offset


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
