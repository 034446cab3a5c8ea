"""What the subcommands' flags share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, TextIO


def game_argument(name: str) -> str:
    """Return a game in the package's spelling; the error for an unknown one names similar names."""
    from rl_infonce.atari.games import resolve_game  # `doctor` starts where ale_py is missing

    try:
        return resolve_game(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def shown(meaning: str) -> str:
    """Return the help of a flag, a sentence with its default."""
    return f"{meaning} (%(default)s)."


def add_game(add: Callable[..., Any]) -> None:
    """Add the flag of a game, which must be given, to a parser's `add`."""
    meaning = 'Game, in any spelling, e.g. "pong".'
    add("--game", "--env", type=game_argument, required=True, help=meaning)


def _game_of_task(name: str) -> str:
    from rl_infonce.environments.ids import is_no_game

    if is_no_game(name):
        raise argparse.ArgumentTypeError(f"{name} is no Atari game. Did you mean --env {name}?")
    return game_argument(name)


class _Environment(argparse.Action):
    """Take an Atari game in any spelling for `--game`, and check that there is any other id."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        from rl_infonce.environments.ids import find_spec, is_atari

        try:
            if is_atari(values):
                namespace.game = game_argument(values)
            else:
                find_spec(values)
                setattr(namespace, self.dest, values)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise argparse.ArgumentError(self, str(error)) from None


def add_task(parser: argparse._ActionsContainer, usual: str = "") -> None:
    """Add the flags of a game and of an environment, of which a parser takes one.

    `usual` says in brackets what is taken without them.
    """
    add = parser.add_mutually_exclusive_group().add_argument
    add("--game", type=_game_of_task, help=f'Atari game, in any spelling, e.g. "pong"{usual}.')
    add(
        "--env",
        action=_Environment,
        metavar="ID",
        help=f"Gymnasium id of an environment, e.g. HalfCheetah-v5 or my_envs:Maze-v0{usual}.",
    )


def add_trust_pickle(add: Callable[..., Any]) -> None:
    """Add the flag that lets a model file execute its code."""
    add(
        "--trust-pickle",
        action="store_true",
        help="Let a model file that cannot be read safely execute the code it contains: classes "
        "other than SB3's own and InfoNCEExtractor.",
    )


def add_progress(add: Callable[..., Any]) -> None:
    """Add the flags of a progress bar and of silence."""
    add("-q", "--quiet", action="store_true", help="Print nothing but warnings and errors.")
    add(
        "-P",
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="Show a progress bar (on in a terminal).",
    )


def shows_progress(arguments: argparse.Namespace, stream: TextIO | None = None) -> bool:
    """Return whether to draw a bar: as asked, or else if the stream (stderr) shows it."""
    if arguments.quiet:
        return False
    if arguments.progress is not None:
        return bool(arguments.progress)
    stream = sys.stderr if stream is None else stream
    return stream is not None and stream.isatty()  # it is None if it was closed
