"""Detectable effects against published values and against tests of drawn runs."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rl_infonce.report.power import (
    _noncentrality,
    detectable_difference,
    smallest_difference,
    within_task_spreads,
)
from rl_infonce.report.sections import HOW_COMPARED
from rl_infonce.report.statistics import t_difference


def detectable_effect(n_runs: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """Return the smallest Cohen's d that Student's test of two samples finds this often."""
    freedom = 2.0 * (n_runs - 1)
    return math.sqrt(2 / n_runs) * _noncentrality(freedom, freedom, power, alpha)


@pytest.mark.parametrize(
    ("n_runs", "effect"),
    [(3, 3.07), (4, 2.38), (5, 2.02), (6, 1.80), (8, 1.51), (10, 1.32), (15, 1.06), (20, 0.91)],
)
def test_the_effects_are_those_of_the_tables(n_runs: int, effect: float) -> None:
    assert detectable_effect(n_runs) == pytest.approx(effect, abs=0.005)


@pytest.mark.parametrize(("power", "alpha"), [(0.8, 0.05), (0.5, 0.05), (0.9, 0.01)])
def test_tests_of_drawn_runs_find_the_effect_as_often_as_promised(
    power: float, alpha: float
) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 20_000, 4))
    found = stats.ttest_ind(x + detectable_effect(4, power, alpha), y, axis=1)
    rejected = (found.pvalue < alpha) & (found.statistic > 0)
    assert rejected.mean() == pytest.approx(power, abs=0.01)


def test_extreme_settings_have_an_answer() -> None:
    effects = [detectable_effect(n_runs, 0.9999, 1e-6) for n_runs in (2, 3, 5, 50, 5000)]
    assert effects == sorted(effects, reverse=True)
    # with many runs the test is that of a normal: (z_power + z_alpha) sqrt(2 / n)
    expected = (3.71902 + 4.89164) * math.sqrt(2 / 5000)
    assert effects[-1] == pytest.approx(expected, rel=2e-3)
    assert 0 < detectable_effect(3, 0.051) < 0.4


def test_differences_have_the_units_of_the_spreads() -> None:
    assert smallest_difference([7.0, 14.0], 5) == pytest.approx(7 * smallest_difference([1, 2], 5))


def test_many_runs_of_one_task_have_the_effect() -> None:
    # Welch's test knows as much as Student's then
    assert smallest_difference([1.0], 500) == pytest.approx(detectable_effect(500), rel=1e-3)
    assert smallest_difference([1.0], 3) > 1.1 * detectable_effect(3)


def test_more_tasks_show_smaller_differences() -> None:
    # the error of the mean is 1 / sqrt(4), and 4 tasks have the degrees of freedom of 1997 runs
    found = smallest_difference([3.0] * 4, 500)
    expected = 3 * detectable_effect(1997) * math.sqrt(1997 / 500) / 2
    assert found == pytest.approx(expected, rel=1e-3)


def share_found(difference: float, spreads: Any, n_runs: int, n_times: int, paired: bool) -> float:
    """Return how often a difference is found in runs [n_tasks, n_runs] of these spreads."""
    rng, n_found = np.random.default_rng(0), 0
    for _ in range(n_times):
        arms = rng.normal(0.0, np.array(spreads)[:, None], (2, len(spreads), n_runs))
        ours, theirs = (dict(zip("abcd", runs, strict=False)) for runs in arms)
        ours = {task: runs + difference for task, runs in ours.items()}
        n_found += t_difference(ours, theirs, paired=paired).low > 0
    return n_found / n_times


@pytest.mark.parametrize("n_runs", [2, 3, 5])
@pytest.mark.parametrize("spreads", [[2.0], [2.0] * 4, [1.0, 1.0, 1.0, 10.0]])
def test_differences_of_drawn_runs_are_found_as_often_as_promised(
    spreads: list[float], n_runs: int
) -> None:
    found = share_found(smallest_difference(spreads, n_runs), spreads, n_runs, 300, paired=False)
    lacking, scatter = 0.06 if n_runs == 2 else 0.03, 0.04
    assert found == pytest.approx(0.8, abs=lacking + scatter)


@pytest.mark.parametrize(("n_runs", "n_tasks"), [(3, 1), (3, 4), (5, 4)])
def test_paired_differences_are_found_as_often_as_promised(n_runs: int, n_tasks: int) -> None:
    difference = smallest_difference([math.sqrt(2)] * n_tasks, n_runs, paired=True)
    found = share_found(difference, [1.0] * n_tasks, n_runs, 2000, paired=True)
    assert found == pytest.approx(0.8, abs=0.03)  # unpaired it would be 0.37 to 0.72


def test_tasks_may_have_unequal_numbers_of_pairs() -> None:
    rng = np.random.default_rng(0)
    spreads, n_pairs = (1.0, 1.0), (10, 3)
    difference = smallest_difference(spreads, n_pairs, paired=True)
    assert smallest_difference(spreads, 10, paired=True) < difference
    assert difference < smallest_difference(spreads, 3, paired=True)
    n_found = 0
    for _ in range(2000):
        gains = {str(n): difference + rng.normal(size=n) for n in n_pairs}
        nothing = {task: np.zeros(len(values)) for task, values in gains.items()}
        n_found += t_difference(gains, nothing, paired=True).low > 0
    assert n_found / 2000 == pytest.approx(0.8, abs=0.03)
    with pytest.raises(ValueError, match=r"`n_runs` of shape \[2\], got \(3,\)"):
        smallest_difference(spreads, (3, 3, 3))


def test_paired_runs_of_one_task_are_those_of_one_sample() -> None:
    # Cohen 1988: d = 3.26 for n = 3 and 1.68 for n = 5 (one sample, two-sided 5 %, power 80 %)
    assert smallest_difference([1.0], 3, paired=True) == pytest.approx(3.26, abs=0.01)
    assert smallest_difference([1.0], 5, paired=True) == pytest.approx(1.68, abs=0.01)
    with pytest.raises(TypeError, match="`paired`"):
        smallest_difference([1.0], 3, paired=1)  # type: ignore[arg-type]


def test_spreads_are_those_within_tasks() -> None:
    found = within_task_spreads({"a": [1.0, 3.0], "b": [100.0, 101.0, 102.0]})
    np.testing.assert_allclose(found, [math.sqrt(2), 1.0])
    with pytest.raises(ValueError, match=r"at least 2 runs in `scores\['a'\]`, got 1"):
        within_task_spreads({"a": [1.0]})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1,), ValueError, "`n_runs` to be a finite number >= 2, got 1"),
        ((3.0,), TypeError, "`n_runs` to be an integer, got 3.0"),
        ((3, 1.0), ValueError, "`power` to be a finite number > 0 and < 1, got 1.0"),
        ((3, 0.0), ValueError, "`power` to be a finite number > 0"),
        ((3, 0.8, 1.0), ValueError, "`alpha` to be a finite number > 0 and < 1"),
        ((3, 0.8, 0.0), ValueError, "`alpha` to be a finite number > 0"),
        ((3, 0.05, 0.05), ValueError, "`power` above `alpha`=0.05, got 0.05"),
    ],
)
def test_bad_input_is_named(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        smallest_difference([1.0, 2.0], *arguments)


@pytest.mark.parametrize("spreads", [[], [0.0, 0.0], [1.0, -1.0], [1.0, math.nan]])
def test_bad_spreads_are_named(spreads: list[float]) -> None:
    with pytest.raises(ValueError, match="finite `spreads` >= 0, one of them above 0, got"):
        smallest_difference(spreads, 3)
    with pytest.raises(ValueError, match=r"`spreads` of shape \[n_tasks\], got \(\)"):
        smallest_difference(1.0, 3)


def test_what_pairs_could_have_shown_is_told_from_their_differences() -> None:
    # differences 0, 1, 2 and 0, 2, 4, however much the runs themselves scatter
    x = {"a": [0.0, 11.0, 22.0], "b": [0.0, 2.0, 4.0]}
    y = {"a": [0.0, 10.0, 20.0], "b": [0.0, 0.0, 0.0]}
    expected = smallest_difference([1.0, 2.0], 3, 0.9, paired=True)
    assert detectable_difference(x, y, 0.9) == pytest.approx(expected)


@pytest.mark.parametrize(("n_pairs", "low", "high"), [(12, 4, 10), (3, 1, 10)])
def test_how_badly_few_pairs_tell_what_they_find(n_pairs: int, low: int, high: int) -> None:
    # the estimate has the true scatter times chi, and its difference that many standard errors
    freedom = n_pairs - 1
    errors = _noncentrality(freedom, freedom, 0.8, 0.05)
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
