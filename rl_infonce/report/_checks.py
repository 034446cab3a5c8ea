"""Argument checks that only this room needs."""

from __future__ import annotations

import math

import numpy as np

from rl_infonce.checks import check_number

__all__ = ["check_count", "check_share"]


def check_count(name: str, value: int, *, at_least: int = 1, at_most: float = math.inf) -> None:
    """Raise unless `value` is an integer inside the given range.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"Expected `{name}` to be an integer, got {value!r}.")
    check_number(name, int(value), at_least=at_least, at_most=at_most)


def check_share(name: str, value: float) -> None:
    """Raise unless `value` lies strictly between 0 and 1.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is out of range.
    """
    check_number(name, value, above=0)
    if value >= 1:
        raise ValueError(f"Expected `{name}` below 1, got {value}.")
