"""What a handful of runs can say: intervals of Student's t, by SciPy, and their verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_infonce.checks import check_number, check_shape, import_extra
from rl_infonce.report.run_scores import Scores, checked_scores, paired_differences


class Interval(NamedTuple):
    """A mean, or another statistic, and the interval about it."""

    mean: float
    low: float
    high: float


def scipy_stats() -> Any:
    """Return `scipy.stats`, or name the extra that it comes with."""
    return import_extra("scipy.stats", "report")


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return mean and Student's t interval of independent values, e.g. differences by seed.

    Exact for normal values; with three of them it reaches 2.5 standard deviations to either side,
    and rightly so.
    """
    stats = scipy_stats()
    numbers = np.asarray(values, dtype=np.float64)
    check_shape("values", numbers, ("n",))
    n = len(numbers)
    if n < 2 or not np.isfinite(numbers).all():
        raise ValueError(f"Expected at least 2 finite `values`, got {list(values)}.")
    check_number("confidence", confidence, above=0, below=1)
    mean = float(numbers.mean())
    error = float(numbers.std(ddof=1)) / n**0.5
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    return Interval(mean, mean - half, mean + half)


def t_difference(x: Scores, y: Scores, *, confidence: float = 0.95) -> Interval:
    """Return mean(x) - mean(y) over tasks and its t interval for other seeds.

    Run i of x and run i of y of a task have the same seed, and what they share cancels. The tasks
    are these and no others: only the scatter between the differences of a task counts. Variances
    may differ between tasks (degrees of freedom by Satterthwaite 1946, "An Approximate Distribution
    of Estimates of Variance Components"). For a claim about tasks at large give the means of the
    tasks to `t_interval`. Differences without any scatter have an interval without width.
    """
    stats = scipy_stats()
    check_number("confidence", confidence, above=0, below=1)
    differences = checked_scores("differences", paired_differences(x, y), 2)
    for task, values in differences.items():
        check_shape(f"differences[{task!r}]", values, ("n_runs",))
    groups = list(differences.values())
    mean = float(np.mean([values.mean() for values in groups]))
    shares = [values.var(ddof=1) / len(values) / len(groups) ** 2 for values in groups]
    variance = float(np.sum(shares))
    if variance == 0:  # no scatter, no degrees of freedom
        return Interval(mean, mean, mean)
    freedom = variance**2 / sum(
        share**2 / (len(values) - 1) for share, values in zip(shares, groups, strict=True)
    )
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half)


def verdict(difference: Interval) -> str:
    """Return in words whether the interval of a difference lies above 0, below it, or holds it.

    The last is a result as well: `rl_infonce.report.power.detectable_difference` says what was too
    small to be seen.
    """
    if difference.low > 0:
        return "higher"
    return "lower" if difference.high < 0 else "no detectable difference"
