"""Intervals of any statistic of runs, by resampling the runs of each task.

The stratified percentile bootstrap of Agarwal et al. 2021 (arXiv 2108.13264, sec. 4.1): other seeds
on the same tasks. With a handful of runs it is too narrow, since a resample scatters less than new
runs do. How often nominal 95 % intervals held the truth, in percent, for normal scores
(`test_bootstrap.py` measures it again):

| runs per task                          | 3, 1 task | 3, 4 tasks | 5, 4 tasks | 10, 4 tasks |
|----------------------------------------|-----------|------------|------------|-------------|
| mean of one arm                        |        75 |         85 |         90 |          93 |
| the same with `widen=True`             |        94 |         97 |         96 |          96 |
| difference of means                    |        95 |         96 |         95 |          95 |
| difference of IQMs                     |        95 |         97 |         96 |          96 |
| probability of improvement             |        81 |         92 |         94 |          95 |

So intervals of differences are widened, and bands if `widen`. A probability of improvement has
bounds that it must not leave: with 3 seeds, one in twelve (4 tasks) or one in five (1 task) pairs
of equal arms is called different. For means, `rl_infonce.report.statistics.t_difference` may stand
beside all of these.
Where tasks scatter up to 30 times unequally, widened intervals hold in 93 to 100 % (4 tasks, 3
runs).
Skewed and bimodal scores leave the rows of comparisons within 3 of these, as their shape cancels;
one arm alone then has 62 to 69 % with 3 runs of 1 task.

Shared by all functions here:

- A statistic maps task to [..., n_runs] scores to [...] values, leading axes unharmed, as those of
  `rl_infonce.report.aggregates` do: it is called once, with all resamples on the first axis.
- Widening stretches both sides by s t / z. s is the ratio of a mean's standard error to that
  of its resamples, in which a variance over n runs counts (n - 1) / n; t and z are quantiles of
  Student and of the normal, t with Satterthwaite's degrees of freedom, as tasks scatter unequally.
  That undoes the lack of scatter and of certainty about it that are known for a mean (Hesterberg
  2015, "What Teachers Should Know About the Bootstrap", who expands the percentiles instead, which
  cannot leave the range of the runs). Bounded statistics may leave their bounds. Needs SciPy:
  `pip install rl-infonce[report]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_count, check_flag, check_generator, check_number
from rl_infonce.report.aggregates import probability_of_improvement
from rl_infonce.report.run_scores import Scores, checked_scores, paired_differences
from rl_infonce.report.statistics import Interval, scipy_stats

FloatArray = npt.NDArray[np.float64]
Arrays = dict[str, FloatArray]
Draws = dict[str, npt.NDArray[np.int64]]
Statistic = Callable[[Mapping[str, FloatArray]], npt.ArrayLike]


class Band(NamedTuple):
    """A statistic with several values [...], and an interval about each, not about all at once."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


def bootstrap_band(
    scores: Scores,
    statistic: Statistic,
    *,
    rng: np.random.Generator,
    n_resamples: int = 2000,
    confidence: float = 0.95,
    widen: bool = False,
) -> Band:
    """Return a statistic with several values and percentile intervals for other seeds.

    `scores` map tasks to [..., n_runs], at least 2 runs each. For sample efficiency:
    `interquartile_mean` of scores [n_windows, n_runs], whole runs being resampled. A statistic
    keeps the leading axes first; `confidence` is that of each value on its own, and `widen` makes
    up for few runs: each value by its own row, and those of several rows by the one that lacks
    most.
    """
    _check_settings(rng, n_resamples, confidence)
    check_flag("widen", widen)
    runs = checked_scores("scores", scores, 2)
    resampled = _taken(runs, _draws(runs, rng, n_resamples))
    factor = _widening(list(runs.values()), confidence) if widen else np.ones(())
    return _band(statistic(runs), statistic(resampled), n_resamples, confidence, factor)


def bootstrap_difference(
    x: Scores,
    y: Scores,
    statistic: Statistic,
    *,
    rng: np.random.Generator,
    n_resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Return statistic(x) - statistic(y) and its widened percentile interval for other seeds.

    x and y map the same tasks to [n_runs], at least 2 each, or to [..., n_runs] where the statistic
    makes one number of all rows. Run i of x and run i of y of a task have the same seed; they are
    drawn together, so that what they share cancels.
    """
    _check_settings(rng, n_resamples, confidence)
    ours, theirs = checked_scores("x", x, 2), checked_scores("y", y, 2)
    groups = list(paired_differences(ours, theirs).values())

    def difference(one: Arrays, other: Arrays) -> FloatArray:
        values = np.asarray(statistic(one), dtype=np.float64)
        return values - np.asarray(statistic(other), dtype=np.float64)

    draws = _draws(ours, rng, n_resamples)
    resampled = difference(_taken(ours, draws), _taken(theirs, draws))
    factor = _widening(groups, confidence)
    return _interval(_band(difference(ours, theirs), resampled, n_resamples, confidence, factor))


def bootstrap_improvement(
    x: Scores,
    y: Scores,
    *,
    rng: np.random.Generator,
    n_resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Return `probability_of_improvement` of x over y and its percentile interval for other seeds.

    x and y map the same tasks to [n_runs], at least 2 each. All pairs of runs are compared whatever
    their seeds, and the arms are drawn each on its own. Equal arms have 0.5. Arms without any
    overlap on any task give an interval without width, as [1, 1], [0, 0] or, where one arm is above
    on one of two tasks and below on the other, [0.5, 0.5]; with one task and 3 runs each equal arms
    do so in one of ten comparisons.
    """
    _check_settings(rng, n_resamples, confidence)
    ours, theirs = checked_scores("x", x, 2), checked_scores("y", y, 2)
    found = probability_of_improvement(ours, theirs)
    drawn = [_taken(arm, _draws(arm, rng, n_resamples)) for arm in (ours, theirs)]
    resampled = probability_of_improvement(*drawn)
    return _interval(_band(found, resampled, n_resamples, confidence, np.ones(())))


def _interval(band: Band) -> Interval:
    if band.value.shape:
        raise ValueError(
            f"Expected `statistic` to give one number, got shape {band.value.shape}. "
            "`bootstrap_band` takes several."
        )
    return Interval(*(float(end) for end in band))


def _draws(runs: Arrays, rng: np.random.Generator, n_resamples: int) -> Draws:
    """Return task to [n_resamples, n_runs] runs with replacement, each task on its own."""
    return {
        task: rng.integers(values.shape[-1], size=(n_resamples, values.shape[-1]))
        for task, values in runs.items()
    }


def _taken(runs: Arrays, draws: Draws) -> Arrays:
    """Return task to [n_resamples, ..., n_runs] scores of the runs that were drawn."""
    return {task: np.moveaxis(values[..., draws[task]], -2, 0) for task, values in runs.items()}


def _widening(groups: Sequence[FloatArray], confidence: float) -> FloatArray:
    """Return [...], what the percentile interval of a mean lacks with so few runs [..., n_runs]."""
    stats = scipy_stats()
    n_runs = np.array([values.shape[-1] for values in groups])
    shares = np.stack([values.var(axis=-1, ddof=1) for values in groups], axis=-1) / n_runs
    shares[~shares.any(axis=-1)] = 1.0  # without any scatter there is nothing to widen
    scatter, resampled = shares.sum(-1), (shares * (n_runs - 1) / n_runs).sum(-1)
    freedom = scatter**2 / (shares**2 / (n_runs - 1)).sum(-1)
    upper = (1 + confidence) / 2
    quantiles: FloatArray = stats.t.ppf(upper, freedom) / stats.norm.ppf(upper)
    factor: FloatArray = np.sqrt(scatter / resampled) * quantiles
    return factor


def _band(
    value: npt.ArrayLike,
    resampled: npt.ArrayLike,
    n_resamples: int,
    confidence: float,
    factor: FloatArray,
) -> Band:
    found = np.asarray(value, dtype=np.float64)
    others = np.asarray(resampled, dtype=np.float64)
    if others.shape != (n_resamples, *found.shape):
        raise ValueError(
            f"Expected `statistic` to give shape {(n_resamples, *found.shape)} for {n_resamples} "
            f"resamples on the first axis, got {others.shape}. Reduce the last axis only."
        )
    tail = (1 - confidence) / 2
    low, high = np.quantile(others, [tail, 1 - tail], axis=0)
    if factor.shape != found.shape[: factor.ndim]:
        factor = factor.max()  # a value of several rows is widened as the row that lacks most
    factor = factor.reshape(factor.shape + (1,) * (found.ndim - factor.ndim))
    return Band(found, found - factor * (found - low), found + factor * (high - found))


def _check_settings(rng: np.random.Generator, n_resamples: int, confidence: float) -> None:
    check_generator(rng)
    check_count("n_resamples", n_resamples)
    check_number("confidence", confidence, above=0, below=1)
