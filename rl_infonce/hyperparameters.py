"""Hyperparameters as RL Zoo writes them on a command line, without its `eval`."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable
from typing import Any

__all__ = ["parse_hyperparameters"]

_SCHEDULE = "lin_"


def parse_hyperparameters(words: Iterable[str]) -> dict[str, Any]:
    """Return names and values of "name:value" words.

    Args:
        words: Values are Python literals, e.g. "n_epochs:6", or schedules that fall linearly to 0,
            e.g. "learning_rate:lin_2.5e-4", which stay text.

    Raises:
        ValueError: If a word is of another form, or a name comes twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, colon, text = word.partition(":")
        if not colon or not name.isidentifier():
            raise ValueError(f"Expected a hyperparameter as name:value, got {word!r}.")
        if name in found:
            raise ValueError(f"Expected each hyperparameter once, got {name!r} twice.")
        found[name] = _value(word, text)
    return found


def _value(word: str, text: str) -> Any:
    if text.startswith(_SCHEDULE):
        if not _is_finite_number(text.removeprefix(_SCHEDULE)):
            raise ValueError(f"Expected a finite number after {_SCHEDULE!r}, got {word!r}.")
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(
            f"Expected a hyperparameter as name:value with a Python literal, got {word!r}."
        ) from None


def _is_finite_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
