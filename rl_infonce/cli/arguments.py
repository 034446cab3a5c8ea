"""What the subcommands' flags share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, TextIO


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


def shown(meaning: str) -> str:
    """Return the help of a flag, a sentence with its default."""
    return f"{meaning} (%(default)s)."


def add_progress(add: Callable[..., Any]) -> None:
    """Add the flag of a progress bar.

    Args:
        add: `add_argument` of a parser.
    """
    add(
        "-P",
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="Show a progress bar (on in a terminal).",
    )


def shows_progress(arguments: argparse.Namespace, stream: TextIO | None = None) -> bool:
    """Return whether to draw a bar: as asked, else if it would be seen.

    Args:
        arguments: With `progress`.
        stream: To which it is drawn; None is stderr, as of tqdm.
    """
    if arguments.progress is not None:
        return bool(arguments.progress)
    return (sys.stderr if stream is None else stream).isatty()


class _Former(argparse.Action):
    """Takes a flag's former spelling for the present one, with one warning."""

    def __init__(self, new: str, **settings: Any) -> None:
        super().__init__(default=argparse.SUPPRESS, help=argparse.SUPPRESS, **settings)
        self._new, self._has_warned = new, False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if not self._has_warned:
            print(
                f"{parser.prog}: {self.option_strings[0]} is now called {self._new}. The former "
                "name still works; please use the new one.",
                file=sys.stderr,
            )
        self._has_warned = True
        setattr(namespace, self._new.strip("-").replace("-", "_"), values)


def add_former(add: Callable[..., Any], old: str, new: str, **settings: Any) -> None:
    """Let a flag be given by its former spelling.

    Args:
        add: `add_argument` of a parser.
        old: Former spelling.
        new: The flag that is meant.
        settings: Arguments of `add` for that flag.
    """
    add(old, action=_Former, new=new, **settings)
