"""How long to train: so many steps, or so many seconds."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from rl_infonce.checks import check_number

__all__ = ["Budget", "learning_rate_factor", "parse_budget"]

_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Budget(NamedTuple):
    """One of both is given.

    Attributes:
        n_steps: Gradient steps.
        seconds: Of wall clock; the number of steps is found by timing the first ones.
    """

    n_steps: int | None = None
    seconds: float | None = None


def parse_budget(text: str) -> Budget:
    """Return the budget that "10m", "1.5h", "90s" or "5000" steps stand for.

    Raises:
        ValueError: If the text is none of these, or nothing.

    Example:
        >>> parse_budget("10m").seconds
        600.0
        >>> parse_budget("5000").n_steps
        5000
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or not float(match[1]) or ("." in match[1] and not match[2]):
        raise ValueError(
            f'Expected a budget such as "10m", "1.5h", "90s" or "5000" (steps), got {text!r}.'
        )
    if match[2]:
        return Budget(seconds=float(match[1]) * _SECONDS[match[2]])
    return Budget(n_steps=int(match[1]))


def learning_rate_factor(step: int, n_steps: int, *, warmup: float = 0.02) -> float:
    """Return what to multiply the learning rate by: up linearly, then down to 0 as a half cosine.

    Args:
        step: From 0.
        n_steps: In all, at least 1.
        warmup: Share of the steps that go up, in [0, 1).
    """
    check_number("n_steps", n_steps, at_least=1)
    n_warmup = math.ceil(warmup * n_steps)
    if step < n_warmup:
        return (step + 1) / (n_warmup + 1)
    return (1 + math.cos(math.pi * (step - n_warmup) / max(n_steps - n_warmup, 1))) / 2
