"""Aggregates against their definitions in exact arithmetic, and against rliable."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_infonce.report.aggregates import (
    interquartile_mean,
    mean,
    performance_profile,
    probability_of_improvement,
)

Runs = dict[str, list[int]]

RAGGED = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.lists(st.integers(-9, 9), min_size=1, max_size=6),
    min_size=1,
)
TASKS = ("a", "b", "c")
ARM = st.fixed_dictionaries(
    {task: st.lists(st.integers(0, 5), min_size=1, max_size=5) for task in TASKS}
)
STATISTICS = [mean, interquartile_mean]


def average(values: list[Any]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


@settings(max_examples=100, deadline=None)
@given(RAGGED)
def test_each_is_what_its_definition_says(runs: Runs) -> None:
    task_means = [average(values) for values in runs.values()]
    assert mean(runs) == pytest.approx(float(average(task_means)))
    left = sorted(value for values in runs.values() for value in values)
    for _ in range(len(left) // 4):
        left.remove(min(left))
        left.remove(max(left))
    assert interquartile_mean(runs) == pytest.approx(float(average(left)))


@settings(max_examples=100, deadline=None)
@given(ARM, ARM)
def test_improvement_counts_pairs_of_runs_ties_half(x: Runs, y: Runs) -> None:
    shares = []
    for task in TASKS:
        pairs = [(ours, theirs) for ours in x[task] for theirs in y[task]]
        wins = sum(ours > theirs for ours, theirs in pairs)
        ties = sum(ours == theirs for ours, theirs in pairs)
        shares.append(Fraction(2 * wins + ties, 2 * len(pairs)))
    assert probability_of_improvement(x, y) == pytest.approx(float(average(shares)))
    swapped = probability_of_improvement({task: y[task] for task in reversed(TASKS)}, x)
    assert probability_of_improvement(x, y) + swapped == pytest.approx(1)


@settings(max_examples=50, deadline=None)
@given(RAGGED, st.integers(-5, 5), st.integers(1, 5), st.randoms())
def test_scale_shift_and_order_of_runs(runs: Runs, shift: int, scale: int, random: Any) -> None:
    moved: dict[str, Any] = {
        task: [scale * value + shift for value in random.sample(values, len(values))]
        for task, values in reversed(runs.items())
    }
    for statistic in STATISTICS:
        assert statistic(moved) == pytest.approx(scale * float(statistic(runs)) + shift)
    assert probability_of_improvement(runs, runs) == 0.5


def test_they_take_out_of_the_middle_what_they_promise() -> None:
    # of 10 runs, 2 and not 2.5 are left out at either end
    assert interquartile_mean({"a": list(range(10))}) == 4.5
    assert interquartile_mean({"a": [-1e6, 0, 1, 2], "b": [3, 4, 5, 1e9]}) == 2.5
    assert interquartile_mean({"a": [1, 2, 9]}) == 4.0
    assert probability_of_improvement({"a": [3], "b": [1]}, {"a": [2, 1], "b": [2]}) == 0.5


@pytest.mark.parametrize("statistic", STATISTICS)
def test_leading_axes_are_independent_problems(
    statistic: Callable[[Any], npt.NDArray[np.float64]],
) -> None:
    rng = np.random.default_rng(0)
    scores = {"a": rng.normal(size=(2, 3, 4)), "b": rng.normal(size=(2, 3, 5))}
    found = statistic(scores)
    assert found.shape[:2] == (2, 3)
    for i, j in np.ndindex(2, 3):
        alone = statistic({task: values[i, j] for task, values in scores.items()})
        np.testing.assert_allclose(found[i, j], alone)


def test_leading_axes_of_improvement() -> None:
    rng = np.random.default_rng(0)
    x, y = ({"a": rng.integers(3, size=(6, n))} for n in (4, 5))
    found = probability_of_improvement(x, y)
    alone = [probability_of_improvement({"a": x["a"][i]}, {"a": y["a"][i]}) for i in range(6)]
    assert found.tolist() == alone


@settings(max_examples=100, deadline=None)
@given(RAGGED, st.lists(st.integers(-10, 10), min_size=1, max_size=5))
def test_a_profile_counts_the_runs_above_each_level(runs: Runs, levels: list[int]) -> None:
    expected = [
        average([Fraction(sum(v > level for v in values), len(values)) for values in runs.values()])
        for level in levels
    ]
    assert performance_profile(runs, levels).tolist() == pytest.approx(list(map(float, expected)))


def test_leading_axes_of_a_profile() -> None:
    scores = {"a": np.random.default_rng(0).integers(4, size=(6, 5)), "b": np.ones((6, 2))}
    found = performance_profile(scores, [0, 1, 2])
    alone = [
        performance_profile({task: v[i] for task, v in scores.items()}, [0, 1, 2]) for i in range(6)
    ]
    assert np.array_equal(found, alone)


# Columns are tasks. What rliable 1.2.0 (arch 7.2.0, numpy 2.4.6, scipy 1.17.1) says of them:
#   python -m venv rliable_venv && rliable_venv/bin/pip install rliable==1.2.0 "pandas<3"
#   metrics.aggregate_iqm(X), aggregate_mean(X), probability_of_improvement(X, Y)
X = [[0.1, 0.9, 1.4], [0.3, 0.5, 2.2], [0.3, 1.1, 0.7], [0.8, 0.2, 1.9], [0.2, 0.6, 1.0]]
Y = [[0.3, 0.4, 1.0], [0.5, 0.5, 1.3], [0.1, 1.2, 0.2], [0.6, 0.9, 2.5]]
OF_RLIABLE = [(X, (0.688888888888889, 0.8133333333333334)), (Y, (0.65, 0.7916666666666666))]
IMPROVEMENT_OF_RLIABLE = 0.48333333333333334


def by_task(matrix: list[list[float]]) -> dict[str, list[float]]:
    return dict(zip(TASKS, map(list, zip(*matrix, strict=True)), strict=True))


def test_they_agree_with_rliable() -> None:
    for matrix, expected in OF_RLIABLE:
        runs = by_task(matrix)
        assert (interquartile_mean(runs), mean(runs)) == pytest.approx(expected, rel=1e-12)
    found = probability_of_improvement(by_task(X), by_task(Y))
    assert found == pytest.approx(IMPROVEMENT_OF_RLIABLE, rel=1e-12)


def test_bad_input_is_named() -> None:
    for statistic in STATISTICS:
        with pytest.raises(ValueError, match=r"finite `scores\['a'\]`, got 1 NaN or infinite"):
            statistic({"a": [0.0, math.nan]})
    with pytest.raises(ValueError, match=r"`y\['a'\]`, got 0"):
        probability_of_improvement({"a": [0.0]}, {"a": []})
    with pytest.raises(ValueError, match=r"got \['a'\] in `x` only and \['b'\] in `y` only"):
        probability_of_improvement({"a": [0.0]}, {"b": [0.0]})
