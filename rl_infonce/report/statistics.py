"""What a handful of runs can say: intervals of Student's t, by SciPy, and their verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_flag, check_number, check_shape
from rl_infonce.report.run_scores import (
    Scores,
    check_same_tasks,
    checked_scores,
    paired_differences,
)


class Interval(NamedTuple):
    """A mean, or another statistic, and the interval about it."""

    mean: float
    low: float
    high: float


def scipy_stats() -> Any:
    """Return `scipy.stats`, or name the extra that it comes with."""
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError(
            'Statistics need SciPy. Install it with `pip install "rl-infonce[report]"`.'
        ) from error
    return stats


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


def t_interval_over_runs(scores: Scores, confidence: float = 0.95) -> Interval:
    """Return the mean over tasks of each task's mean, and its t interval for other seeds.

    The tasks are these and no others: only the scatter between runs of a task counts. Variances may
    differ between tasks (degrees of freedom by Satterthwaite 1946, "An Approximate Distribution of
    Estimates of Variance Components"). For a claim about tasks at large give the means of the tasks
    to `t_interval`. Runs without any scatter have an interval without width.
    """
    groups = list(_runs("scores", scores).values())
    mean = float(np.mean([values.mean() for values in groups]))
    return _satterthwaite(mean, groups, len(groups), confidence)


def t_difference(x: Scores, y: Scores, *, paired: bool, confidence: float = 0.95) -> Interval:
    """Return mean(x) - mean(y) over tasks and its t interval for other seeds.

    It stands beside a percentile bootstrap, which is too narrow for a handful of runs; see
    `rl_infonce.report.bootstrap`. Unpaired with one task it is Welch's test. With `paired`, run i
    of x and run i of y of a task have the same seed, and what they share cancels; with independent
    runs that costs degrees of freedom and gains nothing.
    """
    check_flag("paired", paired)
    if paired:
        return t_interval_over_runs(paired_differences(x, y), confidence)
    ours, theirs = _runs("x", x), _runs("y", y)
    check_same_tasks(ours, theirs)
    difference = float(np.mean([ours[task].mean() - theirs[task].mean() for task in ours]))
    groups = [*ours.values(), *theirs.values()]
    return _satterthwaite(difference, groups, len(ours), confidence)


class Verdict(NamedTuple):
    """What an interval of a difference says: "higher", "lower" or "no detectable difference".

    The last is a result as well: `rl_infonce.report.power.smallest_difference` says what was too
    small to be seen. `text` is the word with the numbers.
    """

    word: str
    text: str


def verdict(interval: Interval, null: float = 0.0) -> Verdict:
    """Return whether an interval lies above or below the value of no difference, or holds it.

    `null` is what equal arms have: 0 for a difference, 0.5 for a probability of improvement.

    Example:
        >>> verdict(Interval(0.2, 0.05, 0.35)).text
        'higher: 0.2 [0.05, 0.35]'
    """
    check_number("null", null)
    if not (np.isfinite(interval).all() and interval.low <= interval.high):
        raise ValueError(f"Expected finite ends of `interval` in order, got {interval}.")
    word = "no detectable difference"
    if interval.low > null:
        word = "higher"
    elif interval.high < null:
        word = "lower"
    text = f"{word}: {interval.mean:.3g} [{interval.low:.3g}, {interval.high:.3g}]"
    return Verdict(word, text + (f", where equal arms have {null:g}" if null else ""))


def _runs(name: str, scores: Scores) -> dict[str, npt.NDArray[np.float64]]:
    """Return task to [n_runs], at least 2 each."""
    checked = checked_scores(name, scores, 2)
    for task, values in checked.items():
        check_shape(f"{name}[{task!r}]", values, ("n_runs",))
    return checked


def _satterthwaite(
    mean: float, groups: Sequence[npt.NDArray[np.float64]], n_tasks: int, confidence: float
) -> Interval:
    """Return the interval of a sum of means of groups, each over `n_tasks`."""
    stats = scipy_stats()
    check_number("confidence", confidence, above=0, below=1)
    shares = [values.var(ddof=1) / len(values) / n_tasks**2 for values in groups]
    variance = float(np.sum(shares))
    if variance == 0:  # no scatter, no degrees of freedom
        return Interval(mean, mean, mean)
    freedom = variance**2 / sum(
        share**2 / (len(values) - 1) for share, values in zip(shares, groups, strict=True)
    )
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half)
