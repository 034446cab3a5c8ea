"""The flag that names a game."""

from __future__ import annotations

import argparse

__all__ = ["game_argument"]


def game_argument(name: str) -> str:
    """Return a game in the package's spelling.

    Raises:
        argparse.ArgumentTypeError: If there is none of that name; near names are in the message.
    """
    from rl_infonce.atari.games import resolve_game  # `doctor` starts where ale_py is missing

    try:
        return resolve_game(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
