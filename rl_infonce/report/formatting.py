"""Numbers and notes in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def counted(number: int, noun: str) -> str:
    """Return "1 pair" or "2 pairs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def notes_on_arms(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return every note once, after the arms it is on: "infonce, placebo: left out pong"."""
    arms: dict[str, list[str]] = {}
    for arm, texts in notes.items():
        for text in texts:
            arms.setdefault(text, []).append(arm)
    return [f"{', '.join(named)}: {text}" for text, named in arms.items()]
