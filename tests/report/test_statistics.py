"""Intervals against tables of Student's t, SciPy and against how often they hold the truth."""

import math
import sys

import numpy as np
import pytest
from scipy import stats

from rl_infonce.report.statistics import Interval, t_difference, t_interval, verdict


@pytest.mark.parametrize(
    ("values", "confidence", "quantile"),
    [
        ([1.0, 3.0], 0.95, 12.7062),
        ([1.0, 2.0, 6.0], 0.95, 4.30265),
        ([0.0, 1.0, 1.0, 2.0, 5.0], 0.99, 4.60409),
    ],
)
def test_the_quantiles_are_those_of_the_tables(
    values: list[float], confidence: float, quantile: float
) -> None:
    found = t_interval(values, confidence)
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = quantile * (variance / len(values)) ** 0.5
    assert found == pytest.approx((mean, mean - half, mean + half), rel=1e-5)


@pytest.mark.parametrize(
    ("values", "confidence", "message"),
    [
        ([1.0], 0.95, "at least 2 finite `values`, got"),
        ([1.0, float("nan")], 0.95, "at least 2 finite `values`"),
        ([1.0, None], 0.95, "at least 2 finite `values`"),
        ([[1.0, 2.0], [3.0, 4.0]], 0.95, r"`values` of shape \[n\], got \(2, 2\)"),
        ([1.0, 2.0], 0.0, "confidence"),
        ([1.0, 2.0], 1.0, "`confidence` to be a finite number > 0 and < 1"),
    ],
)
def test_bad_input_is_named(values: list[float], confidence: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        t_interval(values, confidence)


def nothing(scores: dict[str, list[float]]) -> dict[str, list[float]]:
    return {task: [0.0] * len(values) for task, values in scores.items()}


def test_over_the_pairs_of_one_task_it_is_the_plain_interval() -> None:
    gains = {"a": [1.0, 2.0, 6.0, 7.5]}
    found = t_difference(gains, nothing(gains), confidence=0.9)
    assert found == pytest.approx(t_interval(gains["a"], 0.9))


def test_tasks_of_equal_scatter_pool_their_degrees_of_freedom() -> None:
    # variances 1 and 1 of 3 pairs each: 4 degrees of freedom, error sqrt(1/3 + 1/3) / 2
    gains = {"a": [0.0, 1.0, 2.0], "b": [10.0, 11.0, 12.0]}
    half = 2.776445 * math.sqrt(2 / 3) / 2
    found = t_difference(gains, nothing(gains))
    assert found == pytest.approx((6.0, 6.0 - half, 6.0 + half), rel=1e-6)


def test_it_is_the_test_of_paired_differences() -> None:
    x, y = [3.0, 5.0, 4.0, 9.0], [1.0, 2.5, 2.0, 8.0]
    found = t_difference({"a": x}, {"a": y})
    reference = stats.ttest_rel(x, y).confidence_interval(0.95)
    assert found == pytest.approx((1.875, reference.low, reference.high))


def test_the_order_of_tasks_is_nothing() -> None:
    x = {"a": [1.0, 2.0, 4.0], "b": [30.0, 35.0]}
    y = {"b": [20.0, 21.0], "a": [0.0, 0.0, 1.0]}
    found = t_difference(x, y)
    assert found.mean == pytest.approx((2 + 12) / 2)
    assert found == pytest.approx(t_difference(x, dict(reversed(y.items()))))


def test_differences_over_tasks_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    n_held, spreads = 0, np.array([[1.0], [0.5]])
    for _ in range(1000):
        # what runs with the same seed share, and tasks of different spread
        x, y = rng.normal(5.0, spreads, (2, 2, 3)) + rng.normal(0, 2, (2, 3))
        arms = ({"a": arm[0], "b": arm[1]} for arm in (x + 1, y))
        _, low, high = t_difference(*arms, confidence=0.9)
        n_held += low <= 1 <= high
    assert n_held / 1000 == pytest.approx(0.9, abs=0.03)


def test_differences_without_scatter_have_an_interval_without_width() -> None:
    same = {"a": [2.0, 2.0], "b": [4.0, 4.0]}
    assert t_difference(same, nothing(same)) == (3.0, 3.0, 3.0)


def test_what_cannot_be_compared_is_named() -> None:
    one, two, curves = {"a": [1.0]}, {"a": [1.0, 2.0]}, {"a": [[1.0, 2.0]]}
    with pytest.raises(ValueError, match=r"at least 2 runs in `differences\['a'\]`, got 1"):
        t_difference(one, one)
    with pytest.raises(ValueError, match="same runs of 'a'"):
        t_difference(two, {"a": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"\['a'\] in `x` only"):
        t_difference(two, {"b": [1.0, 2.0]})
    with pytest.raises(ValueError, match="`confidence` to be a finite number > 0 and < 1"):
        t_difference(two, two, confidence=95)
    with pytest.raises(ValueError, match=r"`differences\['a'\]` of shape \[n_runs\], got \(1, 2\)"):
        t_difference(curves, curves)


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ((0.2, 0.05, 0.35), "higher"),
        ((-2000.0, -3000.0, -1.0), "lower"),
        ((0.1, -0.1, 0.3), "no detectable difference"),
        ((0.1, 0.0, 0.2), "no detectable difference"),
        ((-1.0, -2.0, 0.0), "no detectable difference"),
    ],
)
def test_a_verdict_says_where_the_interval_lies(
    ends: tuple[float, float, float], word: str
) -> None:
    assert verdict(Interval(*ends)) == word


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy", "scipy.stats"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "rl-infonce\[report\]"'):
        t_interval([1.0, 2.0])
