"""Detectable differences against published values and against tests of drawn runs."""

import math

import numpy as np
import pytest
from scipy import stats

from rl_infonce.report.power import _noncentrality, detectable_difference, smallest_difference
from rl_infonce.report.sections import HOW_COMPARED
from rl_infonce.report.statistics import t_difference


def test_differences_have_the_units_of_the_spreads() -> None:
    assert smallest_difference([7.0, 14.0], 5) == pytest.approx(7 * smallest_difference([1, 2], 5))


def test_more_tasks_show_smaller_differences() -> None:
    # with many pairs the test is that of a normal: (z_power + z_alpha) / sqrt(n)
    expected = 3 * (0.841621 + 1.959964) / math.sqrt(2000)
    assert smallest_difference([3.0], 2000) == pytest.approx(expected, rel=1e-3)
    assert smallest_difference([3.0] * 4, 500) == pytest.approx(expected, rel=1e-3)


def share_found(difference: float, spreads: list[float], n_pairs: list[int]) -> float:
    """Return how often a difference is found in pairs of these spreads and numbers, by task."""
    rng, n_found = np.random.default_rng(0), 0
    for _ in range(1000):
        gains = {
            str(task): difference + spread * rng.normal(size=n)
            for task, (spread, n) in enumerate(zip(spreads, n_pairs, strict=True))
        }
        nothing = {task: np.zeros(len(values)) for task, values in gains.items()}
        n_found += t_difference(gains, nothing).low > 0
    return n_found / 1000


@pytest.mark.parametrize("n_pairs", [3, 5])
@pytest.mark.parametrize("spreads", [[2.0], [2.0] * 4, [1.0, 1.0, 1.0, 10.0]])
def test_differences_of_drawn_pairs_are_found_as_often_as_promised(
    spreads: list[float], n_pairs: int
) -> None:
    found = share_found(smallest_difference(spreads, n_pairs), spreads, [n_pairs] * len(spreads))
    assert found == pytest.approx(0.8, abs=0.03)


def test_tasks_may_have_unequal_numbers_of_pairs() -> None:
    spreads, n_pairs = [1.0, 1.0], [10, 3]
    difference = smallest_difference(spreads, n_pairs)
    assert smallest_difference(spreads, 10) < difference < smallest_difference(spreads, 3)
    assert share_found(difference, spreads, n_pairs) == pytest.approx(0.8, abs=0.03)


def test_paired_runs_of_one_task_are_those_of_one_sample() -> None:
    # Cohen 1988: d = 3.26 for n = 3 and 1.68 for n = 5 (one sample, two-sided 5 %, power 80 %)
    assert smallest_difference([1.0], 3) == pytest.approx(3.26, abs=0.01)
    assert smallest_difference([1.0], 5) == pytest.approx(1.68, abs=0.01)


def test_what_pairs_could_have_shown_is_told_from_their_differences() -> None:
    # differences 0, 1, 2 and 0, 2, 4, however much the runs themselves scatter
    x = {"a": [0.0, 11.0, 22.0], "b": [0.0, 2.0, 4.0]}
    y = {"a": [0.0, 10.0, 20.0], "b": [0.0, 0.0, 0.0]}
    expected = smallest_difference([1.0, 2.0], 3)
    assert detectable_difference(x, y) == pytest.approx(expected)


@pytest.mark.parametrize(("n_pairs", "low", "high"), [(12, 4, 10), (3, 1, 10)])
def test_how_badly_few_pairs_tell_what_they_find(n_pairs: int, low: int, high: int) -> None:
    # the estimate has the true scatter times chi, and its difference that many standard errors
    freedom = n_pairs - 1
    errors = _noncentrality(freedom, freedom)
    chi = np.sqrt(stats.chi2.ppf([0.025, 0.975], freedom) / freedom)
    shares = stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, errors * chi)
    assert np.round(10 * shares).tolist() == [low, high]
    assert f"{low} to {high}" in HOW_COMPARED


def test_two_pairs_or_equal_gains_tell_nothing() -> None:
    equal = ([0.1, 10.1, 20.1], [0.0, 10.0, 20.0])
    large = [100_000.1, 33_333.3, 7.7]
    for x, y in (equal, ([value + 1000 / 3 for value in large], large)):
        assert np.ptp(np.subtract(x, y)) > 0, "rounding"
        assert detectable_difference({"a": x}, {"a": y}) is None
    ours, theirs = {"a": equal[0], "b": [0.0, 1.0]}, {"a": equal[1], "b": [1.0, 0.0]}
    assert detectable_difference(ours, theirs) is None
