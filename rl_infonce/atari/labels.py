"""What the bytes of the emulator's RAM mean: named variables of 24 games, in three versions.

The table is that of AtariARI (Anand et al. 2019, "Unsupervised State Representation Learning in
Atari"), MIT licence; `ram_labels.json` beside this file holds it with its source.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.atari.games import resolve_game
from rl_infonce.checks import check_choice, check_shape
from rl_infonce.files.json_text import packaged_json

CATEGORIES = (
    "agent_localization",
    "small_object_localization",
    "other_localization",
    "score_clock_lives_display",
    "misc",
)

N_BYTES = 128


class Variable(NamedTuple):
    """Place of a variable in RAM and its categories.

    Attributes:
        byte: Index into the 128 bytes.
        categories: Some of `CATEGORIES`, none for variables outside the paper's averages.
    """

    byte: int
    categories: tuple[str, ...]


def label_versions() -> tuple[str, ...]:
    """Return the names of the versions.

    "anand2019" is the version that reproduces the paper's table 1, "atariari2021" the last one that
    its authors published, "corrected" the latter without what contradicts the emulator, and with
    what was found beside it.
    """
    return tuple(_table())


def labelled_games(version: str = "corrected") -> tuple[str, ...]:
    """Return the games with labels, as in `games()`.

    Raises:
        ValueError: If there is no such version.
    """
    check_choice("version", version, label_versions())
    return tuple(_table()[version])


def load_labels(game: str, version: str = "corrected") -> dict[str, Variable]:
    """Return the variables of a game by name.

    Args:
        game: Any spelling that `resolve_game` understands.
        version: One of `label_versions()`.

    Raises:
        TypeError: If `game` is not a string.
        ValueError: If there is no such game or version, or the game has no labels.

    Example:
        >>> load_labels("Pong")["ball_x"]
        Variable(byte=49, categories=('small_object_localization',))
    """
    name = resolve_game(game)
    labelled = labelled_games(version)
    if name not in labelled:
        raise ValueError(
            f"Expected `game` with RAM labels in version {version!r}, got {game!r}. The labelled "
            f"games are {', '.join(labelled)}. Of others, label bytes yourself: "
            "`rl_infonce.probing.LabelledObservations` takes them."
        )
    return dict(_table()[version][name])


def labels_hash(game: str, version: str = "corrected") -> str:
    """Return 16 hexadecimal digits that change with a game's labels, to keep beside results.

    Args:
        game: Any spelling that `resolve_game` understands.
        version: One of `label_versions()`.

    Raises:
        TypeError: If `game` is not a string.
        ValueError: If there is no such game or version, or the game has no labels.
    """
    variables = sorted(load_labels(game, version).items())
    text = json.dumps([resolve_game(game), variables], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def decode(
    ram: npt.NDArray[np.uint8], game: str, version: str = "corrected"
) -> dict[str, npt.NDArray[np.uint8]]:
    """Return the value of every variable, as the emulator holds it.

    Args:
        ram: RAM of K states, [K, 128] uint8.
        game: Any spelling that `resolve_game` understands.
        version: One of `label_versions()`.

    Returns:
        Values [K] uint8 by name of the variable.

    Raises:
        TypeError: If `ram` is not an array of uint8 or `game` is not a string.
        ValueError: If `ram` does not have the shape [K, 128], there is no such game or version, or
            the game has no labels.
    """
    if not isinstance(ram, np.ndarray):
        raise TypeError(f"Expected `ram` to be an array of uint8, got {type(ram).__name__}.")
    if ram.shape == (N_BYTES,):
        raise ValueError(f"Expected `ram` of shape [K, {N_BYTES}], got one state. Pass ram[None].")
    check_shape("ram", ram, ("K", N_BYTES))
    if ram.dtype != np.uint8:
        raise TypeError(f"Expected `ram` to be uint8, got {ram.dtype}.")
    return {name: ram[:, var.byte].copy() for name, var in load_labels(game, version).items()}


@cache
def _table() -> dict[str, dict[str, dict[str, Variable]]]:
    """Return version -> game -> variable."""
    versions = packaged_json("rl_infonce.atari", "ram_labels.json")["versions"]
    return {
        version: {
            game: {
                name: Variable(v["byte"], tuple(v["categories"])) for name, v in variables.items()
            }
            for game, variables in content["games"].items()
        }
        for version, content in versions.items()
    }
