"""Settings as words of a command line, and hyperparameters as RL Zoo writes them there."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_SCHEDULE = "lin_"


def parse_hyperparameters(
    words: Iterable[str], *, flag: str = "--hyperparams", plain_text: bool = False
) -> dict[str, Any]:
    """Return the values by name of "name:value" words; unlike RL Zoo's `eval`, it runs no code.

    A tuple becomes a list, as in a grid, where the same value must compare equal.

    Args:
        words: Words whose values are Python literals, e.g. "n_epochs:6", or schedules that fall
            linearly to 0, e.g. "learning_rate:lin_2.5e-4", which stay text.
        flag: Flag from which the words come, for messages.
        plain_text: Whether a value that is neither is taken as text.

    Raises:
        ValueError: If a word has another form, or a name comes twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, colon, text = word.partition(":")
        if not colon or not name.isidentifier():
            raise ValueError(f"Expected `{flag}` as name:value, got {word!r}.")
        if name in found:
            raise ValueError(f"Expected each name in `{flag}` once, got {name!r} twice.")
        found[name] = _value(name, word, text, flag, plain_text=plain_text)
    return found


def is_schedule(value: Any) -> bool:
    """Return whether a value is a schedule that falls linearly to 0, such as "lin_2.5e-4"."""
    return isinstance(value, str) and value.startswith(_SCHEDULE)


def schedule_start(name: str, text: str) -> float:
    """Return the 0.1 of "lin_0.1".

    Args:
        name: Name of the argument.
        text: Text of a schedule.

    Raises:
        ValueError: If the text is not a schedule, or its number is not finite.
    """
    try:
        start = float(text.removeprefix(_SCHEDULE))
    except ValueError:
        start = math.nan
    if not (is_schedule(text) and math.isfinite(start)):
        raise ValueError(
            f'Expected `{name}` as a number or "lin_0.1", which falls from 0.1 to 0, got {text!r}.'
        )
    return start


def flag(name: str) -> str:
    """Return the flag of a setting: --n-pairs for `n_pairs`."""
    return f"--{name.replace('_', '-')}"


def flag_words(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words with which a person would give settings on the command line."""
    for name, value in settings.items():
        if isinstance(value, bool):
            yield flag(name if value else f"no_{name}")
        else:
            yield flag(name)
            yield from map(str, value if isinstance(value, list) else [value])


def _value(name: str, word: str, text: str, flag: str, *, plain_text: bool) -> Any:
    if is_schedule(text) and not plain_text:
        schedule_start(name, text)
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        if plain_text:
            return text
        raise ValueError(
            f"Expected `{flag}` as name:value with a Python literal, got {word!r}."
        ) from None
    return list(value) if isinstance(value, tuple) else value
