"""A parser that knows which flags were given, and which may have been meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from types import MappingProxyType
from typing import Any, NoReturn

_NOT_GIVEN = object()
_BLAMING = ("the following arguments are required", "argument COMMAND: invalid choice")
"""How messages begin that a misspelled flag may be behind."""


class _Store(argparse._StoreAction):
    """Stores what a flag is given; a flag of several values adds to them when it is repeated."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        former = getattr(namespace, self.dest, _NOT_GIVEN)
        if isinstance(values, list) and isinstance(former, list):
            values = [*former, *values]
        super().__call__(parser, namespace, values, option_string)


def _is_flag(word: str) -> bool:
    return word.startswith("--")


def _whole_number(text: str) -> int:
    """Return a whole number, which may be written as 1e5 or 100_000."""
    try:
        return int(text)
    except ValueError:
        value = float(text)  # a ValueError of either is put into words by argparse
    if not value.is_integer():
        raise ValueError
    return int(value)


class NotingParser(argparse.ArgumentParser):
    """Adds `given` to what it returns: the names of the flags that were on the command line.

    Args:
        args: Arguments of `ArgumentParser`.
        example: A command that works, which ends the help.
        kwargs: Further arguments of `ArgumentParser`.

    Attributes:
        elsewhere: For a flag that a reader may expect and there is none, what does its work.
    """

    elsewhere: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._example = example
        self._words: Sequence[str] = ()
        self.register("action", None, _Store)
        self.register("type", int, _whole_number)

    def format_help(self) -> str:
        """Return the help, which ends with the example."""
        return f"{super().format_help()}\nexample:\n  {self._example}\n"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as `argparse` does; see there."""
        self._words = sys.argv[1:] if args is None else args
        defaults = {
            action.dest: action.default
            for action in self._actions
            if argparse.SUPPRESS not in (action.dest, action.default)
        }
        noting = argparse.Namespace(**dict.fromkeys(defaults, _NOT_GIVEN))
        parsed, rest = super().parse_known_args(args, noting)
        if rest and self._subparsers is None:  # otherwise argparse blames the main parser
            flags = [word for word in rest if word.startswith("-")] or rest
            self.error(f"unknown: {' '.join(flags)}.{self._meant(flags[0])}")
        found = vars(parsed)
        given = {name for name in defaults if found[name] is not _NOT_GIVEN}
        for name in defaults.keys() - given:
            found[name] = defaults[name]
        found["given"] = given | found.get("given", set())  # a subcommand noted its own
        if namespace is None:
            return parsed, rest
        vars(namespace).update(found)
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        """Leave as `argparse` does, and blame a misspelled flag rather than what it was to give."""
        if message.startswith(_BLAMING):
            of_commands = self._subparsers is not None  # then flags of a command come behind it
            words = takewhile(_is_flag, self._words) if of_commands else self._words
            unknown = [word for word in words if _is_flag(word) and not self._knows(word)]
            if unknown:
                message = f"unknown: {unknown[0]}.{self._meant(unknown[0])}"
        super().error(message)

    def _knows(self, word: str) -> bool:
        flag = word.partition("=")[0]
        return any(known.startswith(flag) for known in self._option_string_actions)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = get_close_matches(str(value).lower(), map(str, action.choices or ()), n=1)
            if not near:
                raise
            raise argparse.ArgumentError(
                action, f"{error.message}. Did you mean {near[0]}?"
            ) from None

    def _meant(self, unknown: str) -> str:
        flag = unknown.partition("=")[0]
        if flag in self.elsewhere:
            return f" Did you mean {self.elsewhere[flag]}?"
        near = get_close_matches(flag, self._option_string_actions, n=1) if _is_flag(flag) else []
        return f" Did you mean {near[0]}?" if near else f" See {self.prog} --help."
