"""Bootstraps against all possible resamples, against rliable, and how often they hold the truth."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from rl_infonce.report.aggregates import interquartile_mean, mean
from rl_infonce.report.bootstrap import (
    bootstrap_band,
    bootstrap_difference,
    bootstrap_improvement,
)
from rl_infonce.report.statistics import Interval
from tests.further import further
from tests.report import test_aggregates

FloatArray = npt.NDArray[np.float64]
Runs = dict[str, list[float]]

X: Runs = {"a": [0.0, 1.0, 5.0], "b": [2.0, 3.5]}
Y: Runs = {"b": [1.0, 4.0], "a": [0.5, 0.5, 3.0]}


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def all_draws(runs: Runs) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield every way to draw as many runs of each task as there are."""
    draws = [product(range(len(values)), repeat=len(values)) for values in runs.values()]
    for drawn in product(*draws):
        yield dict(zip(runs, drawn, strict=True))


def taken(runs: Runs, draws: dict[str, tuple[int, ...]]) -> Runs:
    return {task: [values[i] for i in draws[task]] for task, values in runs.items()}


def check_quantiles(found: Interval, values: list[float], confidence: float) -> None:
    """Assert that an interval ends at the quantiles of equally probable values, within 1 %."""
    ordered = sorted(values)
    for end, quantile in ((found.low, (1 - confidence) / 2), (found.high, (1 + confidence) / 2)):
        below, above = (ordered[int(len(ordered) * (quantile + e))] for e in (-0.01, 0.01))
        assert below - 1e-9 <= end <= above + 1e-9


def task_mean(runs: Runs) -> float:
    return sum(sum(values) / len(values) for values in runs.values()) / len(runs)


def share_above(x: Runs, y: Runs) -> float:
    shares = []
    for task, ours in x.items():
        pairs = list(product(ours, y[task]))
        shares.append(sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_one_arm_is_resampled_in_all_ways(confidence: float) -> None:
    values = [task_mean(taken(X, draws)) for draws in all_draws(X)]
    found = bootstrap_band(X, mean, rng=rng(), n_resamples=40_000, confidence=confidence)
    assert found.value == pytest.approx(task_mean(X))
    check_quantiles(Interval(*map(float, found)), values, confidence)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_two_arms_are_resampled_apart(confidence: float) -> None:
    pairs = [
        (taken(X, draws), taken(Y, others)) for draws in all_draws(X) for others in all_draws(Y)
    ]
    found = bootstrap_improvement(X, Y, rng=rng(), n_resamples=40_000, confidence=confidence)
    assert found.mean == pytest.approx(share_above(X, Y))
    check_quantiles(found, [share_above(x, y) for x, y in pairs], confidence)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_pairs_are_resampled_together_and_widened(confidence: float) -> None:
    pairs = [(taken(X, draws), taken(Y, draws)) for draws in all_draws(X)]
    settings: dict[str, Any] = {"n_resamples": 40_000, "confidence": confidence}
    found = bootstrap_difference(X, Y, mean, rng=rng(), **settings)
    assert found.mean == pytest.approx(task_mean(X) - task_mean(Y))
    factor = factor_of([np.subtract(X[task], Y[task]) for task in X], confidence)
    plain = Interval(found.mean, *(found.mean + (np.array(found[1:]) - found.mean) / factor))
    check_quantiles(plain, [task_mean(x) - task_mean(y) for x, y in pairs], confidence)


def test_intervals_are_those_of_rliable() -> None:
    # get_interval_estimates with reps=50000 and 5000 after np.random.seed(0): its
    # StratifiedBootstrap draws from the global stream, whatever `random_state` says.
    x, y = (test_aggregates.by_task(matrix) for matrix in (test_aggregates.X, test_aggregates.Y))
    band = bootstrap_band(x, interquartile_mean, rng=rng(), n_resamples=20_000)
    assert band[1:] == pytest.approx((0.5, 0.9222), abs=0.012)
    found = bootstrap_improvement(x, y, rng=rng(), n_resamples=20_000)
    assert found[1:] == pytest.approx((0.2583, 0.7167), abs=0.02)


def test_only_the_generator_decides() -> None:
    before = repr(np.random.get_state())  # noqa: NPY002
    first, again = (bootstrap_band(X, mean, rng=rng()) for _ in range(2))
    assert first == again
    generator = rng()
    curves = {"a": np.linspace(0, 1, 10), "b": np.linspace(0, 7, 11) ** 2}
    one, other = (bootstrap_band(curves, mean, rng=generator) for _ in range(2))
    assert one != other
    assert repr(np.random.get_state()) == before  # noqa: NPY002


def test_tasks_are_drawn_each_on_its_own() -> None:
    # drawn together, runs that are opposite would always cancel
    scores = {"a": [0.0, 1.0, 2.0], "b": [2.0, 1.0, 0.0]}
    found = bootstrap_band(scores, mean, rng=rng())
    assert found.low < 0.7 < 1.3 < found.high


def test_a_band_resamples_whole_runs() -> None:
    curve = np.arange(12.0).reshape(3, 4) ** 2
    repeated = {"a": np.stack([curve[0], curve[0] + 1, curve[0]]), "b": curve}
    band = bootstrap_band(repeated, lambda s: interquartile_mean({"a": s["a"]}), rng=rng())
    assert [ends.shape for ends in band] == [(3,)] * 3
    np.testing.assert_allclose(band.value, interquartile_mean({"a": repeated["a"]}))
    for low_or_high in (band.low, band.high):
        np.testing.assert_allclose(low_or_high - low_or_high[0], [0, 1, 0])
    assert (band.low < band.value).all()
    assert (band.value < band.high).all()


def factor_of(groups: list[FloatArray], confidence: float = 0.95) -> float:
    """Return by how much the interval of a mean over tasks is widened, from its definition."""
    of_means = of_resamples = of_squares = 0.0
    for values in groups:
        n = len(values)
        share = float(np.sum((values - np.mean(values)) ** 2)) / (n - 1) / n
        of_means, of_resamples = of_means + share, of_resamples + share * (n - 1) / n
        of_squares += share**2 / (n - 1)
    upper, freedom = (1 + confidence) / 2, of_means**2 / of_squares
    quantiles = float(stats.t.ppf(upper, freedom)) / NormalDist().inv_cdf(upper)
    return math.sqrt(of_means / of_resamples) * quantiles


def test_widening_makes_up_for_few_runs() -> None:
    drawn = np.random.default_rng(1).normal(size=(2, 4, 3)) * [[[1.0], [0.1], [0.1], [0.5]]]
    x, y = (dict(zip("abcd", arm, strict=True)) for arm in drawn)
    wide = bootstrap_difference(x, y, mean, rng=rng())
    plain = bootstrap_band({task: x[task] - y[task] for task in x}, mean, rng=rng())
    factor = factor_of(list(drawn[0] - drawn[1]))
    assert wide.mean == pytest.approx(float(plain.value))
    assert wide.mean - wide.low == pytest.approx(factor * float(plain.value - plain.low))
    assert wide.high - wide.mean == pytest.approx(factor * float(plain.high - plain.value))


def test_widening_weighs_tasks_by_their_runs() -> None:
    plain, wide = (bootstrap_band(X, mean, rng=rng(), widen=widen) for widen in (False, True))
    # variances 7 and 1.125 of 3 and 2 runs: shares 7 / 3 and 0.5625, resampled 2 / 3 and 1 / 2
    of_means, of_resamples = 7 / 3 + 0.5625, 14 / 9 + 0.28125
    freedom = of_means**2 / ((7 / 3) ** 2 / 2 + 0.5625**2)
    factor = math.sqrt(of_means / of_resamples) * float(stats.t.ppf(0.975, freedom)) / 1.959964
    assert wide.high - wide.low == pytest.approx(factor * (plain.high - plain.low))


def test_every_value_of_a_band_is_widened_by_its_own_scatter() -> None:
    drawn = np.random.default_rng(2).normal(size=(2, 5, 3)) * np.linspace(0.1, 2, 5)[:, None] ** 2
    runs = {"a": drawn[0], "b": drawn[1][::-1]}
    band, wide = (bootstrap_band(runs, mean, rng=rng(), widen=widen) for widen in (False, True))
    expected = [factor_of([runs["a"][i], runs["b"][i]]) for i in range(5)]
    np.testing.assert_allclose((wide.high - wide.low) / (band.high - band.low), expected)


def test_one_number_of_several_rows_is_widened_by_the_row_that_lacks_most() -> None:
    drawn = np.random.default_rng(3).normal(size=(2, 2, 5, 3)) * np.linspace(0.1, 2, 5)[:, None]
    x = {"a": drawn[0, 0], "b": drawn[0, 1][::-1]}
    y = {"a": drawn[1, 0], "b": drawn[1, 1][::-1]}

    def of_all_rows(runs: Mapping[str, FloatArray]) -> FloatArray:
        total: FloatArray = sum(each.mean(axis=(-2, -1)) for each in runs.values())
        return total

    wide = bootstrap_difference(x, y, of_all_rows, rng=rng())
    plain = bootstrap_band({task: x[task] - y[task] for task in x}, of_all_rows, rng=rng())
    factors = [factor_of([x[task][row] - y[task][row] for task in "ab"]) for row in range(5)]
    assert (wide.high - wide.low) / (plain.high - plain.low) == pytest.approx(max(factors))


def test_a_band_of_fewer_values_than_rows_is_widened_as_one_number_of_them() -> None:
    drawn = np.random.default_rng(4).normal(size=(2, 5, 3)) * np.linspace(0.1, 2, 5)[:, None]
    runs = {"a": drawn[0], "b": drawn[1][::-1]}
    expected = max(factor_of([runs["a"][row], runs["b"][row]]) for row in range(5))

    def last_two(taken: Mapping[str, FloatArray]) -> FloatArray:
        last: FloatArray = np.asarray(mean(taken))[..., -2:]
        return last

    def of_all_rows(taken: Mapping[str, FloatArray]) -> FloatArray:
        total: FloatArray = np.asarray(mean(taken)).mean(axis=-1)
        return total

    for statistic, shape in ((last_two, (2,)), (of_all_rows, ())):
        plain, wide = (
            bootstrap_band(runs, statistic, rng=rng(), widen=widen) for widen in (False, True)
        )
        assert wide.low.shape == wide.high.shape == shape
        np.testing.assert_allclose(
            (wide.high - wide.low) / (plain.high - plain.low), np.full(shape, expected)
        )


def test_runs_without_scatter_are_not_widened() -> None:
    same = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0]}
    assert [*bootstrap_band(same, mean, rng=rng(), widen=True)] == [1.5, 1.5, 1.5]


SETTINGS = [(1, 3), (4, 3), (4, 5), (4, 10)]  # tasks and runs of each, as in the docstring
COLUMNS = [0, 1, *map(further, (2, 3))]


def scores_of(column: int, skewed: bool, generator: np.random.Generator) -> dict[str, FloatArray]:
    """Return 1000 experiments [1000, 2, n_runs] of two equal arms, each task on its own level."""
    n_tasks, n_runs = SETTINGS[column]
    levels = np.linspace(0, 3, n_tasks) if n_tasks > 1 else [1.5]
    draw = generator.exponential if skewed else generator.normal
    return {str(task): level + draw(size=(1000, 2, n_runs)) for task, level in enumerate(levels)}


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    ("widen", "documented"), [(False, (75, 85, 90, 93)), (True, (94, 97, 96, 96))]
)
def test_bands_of_one_arm_hold_the_truth_as_often_as_documented(
    column: int, widen: bool, documented: tuple[int, ...]
) -> None:
    generator = rng()
    scores = {t: v[:, 0] for t, v in scores_of(column, False, generator).items()}
    band = bootstrap_band(scores, mean, rng=generator, n_resamples=500, widen=widen)
    held = (band.low <= 1.5) & (band.high >= 1.5)
    assert 100 * held.mean() == pytest.approx(documented[column], abs=3.5)


COMPARISONS: list[tuple[Callable[..., Interval], float, tuple[int, ...]]] = [
    (functools.partial(bootstrap_difference, statistic=mean), 0.0, (95, 96, 95, 95)),
    (functools.partial(bootstrap_difference, statistic=interquartile_mean), 0.0, (95, 97, 96, 96)),
    (bootstrap_improvement, 0.5, (81, 92, 94, 95)),
]


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("skewed", [further(False), True])
@pytest.mark.parametrize(("compare", "truth", "documented"), COMPARISONS)
def test_comparisons_hold_the_truth_as_often_as_documented(
    column: int,
    skewed: bool,
    compare: Callable[..., Interval],
    truth: float,
    documented: tuple[int, ...],
) -> None:
    generator, n_held = rng(), 0
    scores = scores_of(column, skewed, generator)
    for row in range(400):
        x, y = ({task: v[row, arm] for task, v in scores.items()} for arm in (0, 1))
        found = compare(x, y, rng=generator, n_resamples=300)
        n_held += found.low <= truth <= found.high
    assert n_held / 4 == pytest.approx(documented[column], abs=4)


UNEQUAL = [(1, 0.1, 0.1, 0.1), (1, 1, 0.1, 0.1), (0.3, 0.05, 0.02, 0.01)]


@pytest.mark.slow
@pytest.mark.parametrize("spreads", UNEQUAL)
@pytest.mark.parametrize(("compare", "lowest"), [(mean, 92), (interquartile_mean, 94)])
def test_widened_intervals_hold_where_tasks_scatter_unequally(
    spreads: tuple[float, ...], compare: Callable[..., FloatArray], lowest: float
) -> None:
    generator = rng()
    scores = {
        str(task): level + spread * generator.normal(size=(1000, 2, 3))
        for task, (spread, level) in enumerate(zip(spreads, range(4), strict=True))
    }

    held = []
    for row in range(300):
        x, y = ({task: v[row, i] for task, v in scores.items()} for i in (0, 1))
        found = bootstrap_difference(x, y, compare, rng=generator, n_resamples=300)
        held.append(found.low <= 0 <= found.high)
    assert 100 * np.mean(held) >= lowest


GOOD: dict[str, Any] = {"rng": np.random.default_rng(0)}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rng": 0}, TypeError, r"a numpy.random.Generator, got 0. Pass np.random.default_rng"),
        ({"n_resamples": 10.0}, TypeError, "`n_resamples` to be an integer, got 10.0"),
        ({"n_resamples": 0}, ValueError, "`n_resamples` to be a finite number >= 1"),
        ({"confidence": 95}, ValueError, "`confidence` to be a finite number > 0 and < 1, got 95"),
        ({"confidence": 0.0}, ValueError, "`confidence` to be a finite number > 0"),
        ({"widen": 1}, TypeError, "`widen` to be True or False, got 1"),
    ],
)
def test_bad_settings_are_named(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    settings = GOOD | change
    with pytest.raises(error, match=message):
        bootstrap_band(X, mean, **settings)
    if "widen" not in change:
        with pytest.raises(error, match=message):
            bootstrap_difference(X, Y, mean, **settings)
        with pytest.raises(error, match=message):
            bootstrap_improvement(X, Y, **settings)


def test_what_cannot_be_resampled_is_named() -> None:
    with pytest.raises(ValueError, match=r"at least 2 runs in `scores\['a'\]`, got 1"):
        bootstrap_band({"a": [1.0]}, mean, **GOOD)
    with pytest.raises(ValueError, match=r"to give one number, got shape \(1,\). `bootstrap_band`"):
        bootstrap_difference(X, Y, lambda s: np.stack([mean(s)], -1), **GOOD)
    with pytest.raises(ValueError, match=r"shape \(2000,\) for 2000 .* got \(\). Reduce the last"):
        bootstrap_band(X, lambda s: np.mean(s["a"]), **GOOD)


def test_what_cannot_be_compared_is_named() -> None:
    two: Runs = {"a": [1.0, 2.0]}

    def both(x: Runs, y: Runs, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            bootstrap_difference(x, y, mean, **GOOD)
        with pytest.raises(ValueError, match=message):
            bootstrap_improvement(x, y, **GOOD)

    both({"a": [1.0]}, two, r"at least 2 runs in `x\['a'\]`, got 1")
    both(two, {"a": [1.0]}, r"at least 2 runs in `y\['a'\]`, got 1")
    both(two, {"b": [1.0, 2.0]}, r"\['a'\] in `x` only and \['b'\] in `y` only")
    with pytest.raises(ValueError, match=r"same runs of 'a', got shapes \(2,\) and \(3,\)"):
        bootstrap_difference(two, {"a": [1.0, 2.0, 3.0]}, mean, **GOOD)
