"""What paired comparisons could have shown, from the scatter that there is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl_infonce.report.detectable import detectable_difference
from rl_infonce.report.power import smallest_difference

BASELINE = {"a": {0: 0.0, 1: 10.0, 2: 20.0}}


def test_the_scatter_of_the_differences_is_preferred() -> None:
    # differences 0, 1, 2 and 0, 2, 4: variances 1 and 4, however much the baseline scatters
    pairs = {
        "one": ({"a": {0: 0.0, 1: 11.0, 2: 22.0}}, BASELINE),
        "two": ({"a": {0: 0.0, 1: 12.0, 2: 24.0}}, BASELINE),
    }
    found = detectable_difference(pairs)
    assert found is not None
    expected = smallest_difference([math.sqrt(2.5)], 3, paired=True)
    assert found.difference == pytest.approx(expected)
    assert (found.n_pairs, found.scatter) == (3, "the scatter of the paired differences")
    scaled = detectable_difference(pairs, {"a": (5.0, 15.0)})
    assert scaled is not None
    assert scaled.difference == pytest.approx(expected / 10)


def test_few_pairs_take_the_scatter_of_the_baseline() -> None:
    pairs = {"one": ({"a": {0: 0.0, 1: 11.0}}, BASELINE)}
    found = detectable_difference(pairs)
    assert found is not None
    expected = smallest_difference([math.sqrt(2) * 10], 3, paired=True)
    assert found.difference == pytest.approx(expected)
    assert found.scatter == "sqrt(2) times the scatter of baseline"


@pytest.mark.parametrize(
    ("baseline", "scales"),
    [({}, None), ({"a": {0: 1.0}}, None), ({"a": {0: 1.0, 1: 1.0}}, None), (BASELINE, {})],
)
def test_without_scatter_nothing_is_said(
    baseline: dict[str, dict[int, float]], scales: dict[str, tuple[float, float]] | None
) -> None:
    assert detectable_difference({"one": ({}, baseline)}, scales) is None


def test_equal_gains_have_no_scatter() -> None:
    ours = {"a": {seed: score + 0.1 for seed, score in BASELINE["a"].items()}}
    assert detectable_difference({"one": (ours, BASELINE)}) is None
    assert np.ptp([ours["a"][seed] - BASELINE["a"][seed] for seed in range(3)]) > 0, "rounding"
