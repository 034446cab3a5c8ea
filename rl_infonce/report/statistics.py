"""What a handful of runs can say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rl_infonce.checks import check_number

__all__ = ["Interval", "t_interval"]


class Interval(NamedTuple):
    """A mean and the interval about it.

    Attributes:
        mean: Of the values.
        low: Lower end, in their units.
        high: Upper end.
    """

    mean: float
    low: float
    high: float


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return mean and Student's t interval of independent values, e.g. differences by seed.

    Exact for normal values; with three of them it is 2.5 times as wide as they scatter, and rightly
    so. Needs SciPy: `pip install rl-infonce[report]`.

    Args:
        values: [n] finite, n at least 2.
        confidence: In (0, 1).

    Raises:
        ValueError: If there are fewer than 2 values, one is not finite, or the confidence is out of
            range.
    """
    from scipy import stats

    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        raise ValueError(f"Expected at least 2 finite `values`, got {list(values)}.")
    check_number("confidence", confidence, above=0)
    if confidence >= 1:
        raise ValueError(f"Expected `confidence` below 1, got {confidence}.")
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / n**0.5
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    return Interval(mean, mean - half, mean + half)
