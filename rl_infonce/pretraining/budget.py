"""How long a run trains: a number of steps, frames or seconds; and when it validates."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import NamedTuple

from rl_infonce.checks import check_count, check_number

N_VALIDATIONS = 40
_VALIDATION_SHARE = 0.2  # of a budget in seconds, at most
_WARMUP_SHARE = 0.02  # of all steps, in which the learning rate rises
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Budget(NamedTuple):
    """How long to train: one of the three is given, and greater than 0.

    Attributes:
        n_steps: Gradient steps.
        seconds: Seconds of wall clock; the last step is the one after which they are over.
        n_frames: Frames seen in gradient steps, in whole batches: the same for objectives that look
            at different numbers of frames per sample.
    """

    n_steps: int | None = None
    seconds: float | None = None
    n_frames: int | None = None

    def steps(self, n_frames_per_step: int) -> int | None:
        """Return the gradient steps, None if the clock decides."""
        if self.n_frames is None:
            return self.n_steps
        return math.ceil(self.n_frames / n_frames_per_step)


def check_budget(budget: Budget) -> None:
    """Raise unless one of steps, seconds and frames is given, and greater than 0."""
    if not isinstance(budget, Budget):
        raise TypeError(f"Expected `budget` to be a Budget, got {budget!r}: Budget(n_steps=...).")
    given = [name for name, value in budget._asdict().items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"Expected `budget` of steps, seconds or frames, got {budget}.")
    if budget.seconds is not None:
        check_number("budget.seconds", budget.seconds, above=0)
    else:
        check_count(f"budget.{given[0]}", getattr(budget, given[0]))


def parse_budget(text: str) -> Budget:
    """Return the budget that "10m", "1.5h", "90s", "5000 steps" or "1.5M frames" stand for.

    A number without a unit is one of steps.

    Raises:
        ValueError: If the text is none of these, or stands for no time, frames or steps at all.

    Example:
        >>> parse_budget("10m").seconds
        600.0
        >>> parse_budget("5000").n_steps
        5000
        >>> parse_budget("250k frames").n_frames
        250000
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?|[kM]?\s*(?:steps|frames))", text.strip())
    amount = Decimal(match[1]) if match is not None else Decimal(0)
    unit = "" if match is None else match[2]
    if unit not in _SECONDS:
        amount *= {"k": 1000, "M": 1_000_000}.get(unit[:1], 1)
    if not amount or (unit not in _SECONDS and amount % 1):
        raise ValueError(
            f'Expected a budget such as "10m", "1.5h", "90s", "5000 steps" or "1.5M frames", got '
            f"{text!r}. A number alone is one of steps."
        )
    if unit in _SECONDS:
        return Budget(seconds=float(amount) * _SECONDS[unit])
    if unit.endswith("frames"):
        return Budget(n_frames=int(amount))
    return Budget(n_steps=int(amount))


def learning_rate_factor(step: int, n_steps: int) -> float:
    """Return what to multiply the learning rate by: up linearly, then down to 0 as a half cosine.

    `step` counts from 0.
    """
    n_warmup = math.ceil(_WARMUP_SHARE * n_steps)
    if step < n_warmup:
        return (step + 1) / (n_warmup + 1)
    return (1 + math.cos(math.pi * (step - n_warmup) / max(n_steps - n_warmup, 1))) / 2


def next_validation(step: int, n_validations: int, n_steps: int) -> int:
    """Return the step after which to validate next; the last of `n_validations` is at the end."""
    n_left = max(n_steps - step, 0)
    n_validations = min(n_validations, n_left)
    return step + (math.ceil(n_left / n_validations) if n_validations else 0)


def has_time_to_validate(seconds: float, validation_seconds: float, next_seconds: float) -> bool:
    """Return whether validations, with one that takes `next_seconds`, have a fifth of the time."""
    return validation_seconds + next_seconds <= _VALIDATION_SHARE * seconds
