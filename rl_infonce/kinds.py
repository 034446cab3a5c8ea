"""Kinds of settings: what a value must be, in words, as a check, and as a yes or no."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl_infonce.checks import check_choice, check_count, check_flag, check_number, in_words


class Kind(Protocol):
    """What the value of a setting must be."""

    @property
    def words(self) -> str:
        """Complete the sentence "Expected it to be ..."."""

    def check(self, name: str, value: Any) -> None:
        """Raise a TypeError or a ValueError that names the setting unless the value is legal."""

    def fits(self, value: Any) -> bool:
        """Return whether a value from a file is of this kind."""


def _passes(check: Callable[[str, Any], None], value: Any) -> bool:
    try:
        check("it", value)
    except (TypeError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Number:
    """A finite number in a range."""

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf

    @property
    def words(self) -> str:
        return f"a finite number {in_words(self.at_least, self.above, self.at_most)}".rstrip()

    def check(self, name: str, value: Any) -> None:
        check_number(name, value, at_least=self.at_least, above=self.above, at_most=self.at_most)

    def fits(self, value: Any) -> bool:
        return _passes(self.check, value)


@dataclass(frozen=True)
class Count:
    """An integer from a smallest one on."""

    at_least: float = 1

    @property
    def words(self) -> str:
        return f"an int {in_words(self.at_least)}".rstrip()

    def check(self, name: str, value: Any) -> None:
        check_count(name, value, at_least=self.at_least)

    def fits(self, value: Any) -> bool:
        return _passes(self.check, value)


class Flag:
    """True or false."""

    words = "true or false"

    def check(self, name: str, value: Any) -> None:
        check_flag(name, value)

    def fits(self, value: Any) -> bool:
        return _passes(self.check, value)


@dataclass(frozen=True)
class Choice:
    """One of several names; a file may hold any text, of which the check names the nearest one."""

    choices: Sequence[str]

    @property
    def words(self) -> str:
        return f"one of {', '.join(self.choices)}"

    @property
    def words_in_python(self) -> str:
        """The words with what a file cannot hold."""
        return self.words

    def check(self, name: str, value: Any) -> None:
        check_choice(name, value, self.choices)

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)


@dataclass(frozen=True)
class NameOrFunction(Choice):
    """One of several names, or a function that makes the same; a file may hold names alone."""

    makes: str

    @property
    def words_in_python(self) -> str:
        return f"{self.words}, or {self.makes}"

    def check(self, name: str, value: Any) -> None:
        if callable(value):
            return
        if not isinstance(value, str):
            raise TypeError(f"Expected `{name}` to be {self.words_in_python}, got {value!r}.")
        super().check(name, value)


@dataclass(frozen=True)
class Choices:
    """One or more distinct names of several."""

    choices: Sequence[str]

    @property
    def words(self) -> str:
        return f"a list of at least one of {', '.join(self.choices)}"

    def check(self, name: str, value: Any) -> None:
        if not _are_texts(value):
            raise TypeError(f"Expected `{name}` to be {self.words}, got {value!r}.")
        if not value or len(set(value)) != len(value):
            raise ValueError(
                f"Expected `{name}` to be distinct and non-empty, of {self.choices}, got {value!r}."
            )
        for each in value:
            check_choice(name, each, self.choices)

    def fits(self, value: Any) -> bool:
        return _are_texts(value) and bool(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True)
class Counts:
    """One or more integers from a smallest one on."""

    at_least: int = 0

    @property
    def words(self) -> str:
        return f"a list of at least one int >= {self.at_least}"

    def check(self, name: str, value: Any) -> None:
        if not self.fits(value):
            raise ValueError(f"Expected `{name}` to be {self.words}, got {value!r}.")

    def fits(self, value: Any) -> bool:
        is_list = isinstance(value, list | tuple) and bool(value)
        return is_list and all(map(Count(self.at_least).fits, value))


class ByFit(ABC):
    """A kind that has no range: its check asks whether a value fits, and no more."""

    words: str

    def check(self, name: str, value: Any) -> None:
        if not self.fits(value):
            raise TypeError(f"Expected `{name}` to be {self.words}, got {value!r}.")

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Return whether a value is of this kind."""


@dataclass(frozen=True)
class Typed(ByFit):
    """Any value of a Python type."""

    type: Any
    words: str

    def fits(self, value: Any) -> bool:
        return isinstance(value, self.type)


class Texts(ByFit):
    """A list of texts, perhaps of none."""

    words = "a list of texts"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)


def words_in_python(kind: Kind) -> str:
    """Return the words of a kind with what a file cannot hold."""
    return kind.words_in_python if isinstance(kind, Choice) else kind.words


def is_legal(kind: Kind, value: Any) -> bool:
    """Return whether a value is of a kind and passes its check."""
    return kind.fits(value) and _passes(kind.check, value)


TEXT = Typed(str, "text")
PATH = Typed(str, "a path")
TABLE = Typed(Mapping, "a table")
