"""Find the one name of an Atari game from any of its usual spellings."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache

from ale_py import roms

# These cartridges have no single-player mode: ale_py aborts the whole process when it loads one.
_MULTIPLAYER_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})


@cache
def games() -> tuple[str, ...]:
    """Return the names of all playable games, sorted, as ale_py spells them ("ms_pacman").

    Example:
        >>> "ms_pacman" in games()
        True
    """
    return tuple(sorted(set(roms.get_all_rom_ids()) - _MULTIPLAYER_ONLY))


def resolve_game(name: str) -> str:
    """Return ale_py's name of a game from any of its usual spellings.

    These are ale_py's own names, words with spaces or hyphens, CamelCase, and gymnasium ids
    such as "PongNoFrameskip-v4", "PongDeterministic-v4" and "ALE/Pong-v5". The name chooses only
    the game: frame skip and sticky actions, which those ids also encode, are arguments of
    `make_atari_vec_env`.

    Args:
        name: Name of the game in any case.

    Returns:
        One of `games()`.

    Raises:
        TypeError: If `name` is not a string.
        ValueError: If no such game exists (the message names the nearest ones), if it has no
            single-player mode, or if the id asks for RAM observations.

    Example:
        >>> resolve_game("ALE/MsPacman-v5"), resolve_game("space invaders")
        ('ms_pacman', 'space_invaders')
    """
    if not isinstance(name, str):
        raise TypeError(f"Expected `game` to be a string, got {name!r}.")
    stem = re.sub(r"^ale/|-v\d+$", "", name.strip().lower())
    stem = re.sub(r"(noframeskip|deterministic)$", "", stem)
    if re.search(r"-ram$", stem):
        raise ValueError(
            f"Expected `game` with image observations, got {name!r}: RAM is not an image and the "
            "encoders here read images. Drop '-ram' from the name."
        )
    return _find(_letters(stem), name)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)


def _find(letters: str, name: str) -> str:
    by_letters = {_letters(game): game for game in games()}
    if letters in by_letters:
        return by_letters[letters]
    if letters in {_letters(game) for game in _MULTIPLAYER_ONLY}:
        raise ValueError(f"Expected `game` with a single-player mode, got {name!r} without one.")
    near = [by_letters[match] for match in get_close_matches(letters, by_letters, n=3)]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ValueError(
        f"Expected `game` to be one of the {len(by_letters)} names in rl_infonce.atari.games(), "
        f"got {name!r}.{hint}"
    )
