"""Which differences a comparison of arms could have seen: the power of its t test, by SciPy."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rl_infonce.report.run_scores import Scores, paired_differences
from rl_infonce.report.statistics import scipy_stats

FloatArray = npt.NDArray[np.float64]
_POWER = 0.8  # how often a difference of this size is found
_ALPHA = 0.05  # how often one is found where there is none
_ROUNDING = 1e-13  # of scores in float64
_ENOUGH_PAIRS = 3  # two differences say next to nothing of how differences scatter


def smallest_difference(spreads: npt.ArrayLike, n_pairs: npt.ArrayLike) -> float:
    """Return the smallest difference of two arms' means over tasks that is found in 4 of 5.

    The test is that of `rl_infonce.report.statistics.t_difference` at 95 %, with normal scores.
    `spreads` are [n_tasks] standard deviations between the paired differences of a task, one of
    them above 0, for independent runs sqrt(2) times a run's; `n_pairs` counts the pairs, one number
    or one per task. Exact for one task. Else that test estimates its degrees of freedom, too low on
    average: allowing for it, the power is right within 0.03 from 3 pairs on. Spreads estimated from
    a handful of runs are uncertain, and this with them.
    """
    values, counts = (np.asarray(given, dtype=np.float64) for given in (spreads, n_pairs))
    shares = values**2 / counts
    freedom = float(shares.sum() ** 2 / (shares**2 / (counts - 1)).sum())
    error = math.sqrt(float(shares.sum())) / len(values)
    return error * _noncentrality(freedom, _estimated_freedom(shares, counts))


def _estimated_freedom(shares: FloatArray, counts: FloatArray) -> float:
    """Return Satterthwaite's degrees of freedom with estimated variances.

    The ratio of the means of its numerator and denominator: the square of a variance estimated from
    n pairs has the mean (n + 1) / (n - 1) times the square of the true one. `shares` are the
    variances of tasks, each over its number of pairs.
    """
    squares = shares**2 / (counts - 1)
    numerator = float(shares.sum() ** 2 + 2 * squares.sum())
    return numerator / float((squares * (counts + 1) / (counts - 1)).sum())


def detectable_difference(x: Scores, y: Scores) -> float | None:
    """Return the smallest difference that the paired t test of runs like these finds in 4 of 5.

    It is told from the scatter of the paired differences, which a handful of pairs tells badly;
    None if a task has fewer than 3 pairs, or none of them scatters.
    """
    differences = paired_differences(x, y)
    n_pairs = [len(values) for values in differences.values()]
    if min(n_pairs) < _ENOUGH_PAIRS:
        return None
    spreads = np.array([values.std(ddof=1) for values in differences.values()])
    largest = max(float(np.abs(values).max()) for arm in (x, y) for values in arm.values())
    if spreads.max() <= _ROUNDING * largest:  # equal gains
        return None
    return smallest_difference(spreads, n_pairs)


def _noncentrality(freedom: float, estimated: float) -> float:
    """Return how many standard errors a difference must have to be found in 4 of 5.

    The test statistic has `freedom` degrees of freedom; the test takes it to have `estimated`.
    """
    stats = scipy_stats()
    from scipy import optimize

    threshold = float(stats.t.ppf(1 - _ALPHA / 2, estimated))

    def lacking(errors: float) -> float:
        # without the other tail, where SciPy's noncentral t is NaN: less than _ALPHA / 2 in all
        return _POWER - float(stats.nct.sf(threshold, freedom, errors))

    # enough even if mean and spread both come out unluckily, each with half of 1 - _POWER
    unlucky_spread = math.sqrt(stats.chi2.ppf((1 + _POWER) / 2, freedom) / freedom)
    enough = threshold * unlucky_spread + stats.norm.ppf((1 + _POWER) / 2)
    return float(optimize.brentq(lacking, 0.0, enough))
