"""Numbers and notes in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def counted(number: int, noun: str) -> str:
    """Return "1 pair" or "2 pairs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def return_form(returns: Sequence[float], usual: str) -> str:
    """Return the form of returns: a usual one, e.g. ".2f", if it does not round all of them away.

    Example:
        >>> return_form([21.0, 0.5], ".2f"), return_form([0.002, 0.004], ".2f")
        ('.2f', '.4g')
    """
    return ".4g" if 0 < max(map(abs, returns)) < 1 else usual


def interval_words(interval: tuple[float, float, float], form: str) -> str:
    """Return "+0.2 (-0.1 to +0.5)" of a value, its lower and its upper end in the form "+.1f"."""
    value, low, high = (format(each, form) for each in interval)
    return f"{value} ({low} to {high})"


def notes_on_arms(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return every note once, after the arms it is on: "infonce, placebo: left out pong"."""
    arms: dict[str, list[str]] = {}
    for arm, texts in notes.items():
        for text in texts:
            arms.setdefault(text, []).append(arm)
    return [f"{', '.join(named)}: {text}" for text, named in arms.items()]
