"""Intervals against tables of Student's t and against how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from rl_infonce.report.statistics import t_interval


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


def test_it_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    found = [t_interval(rng.normal(3, 2, 4).tolist(), 0.9) for _ in range(2000)]
    assert np.mean([low <= 3 <= high for _, low, high in found]) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(
    ("values", "confidence", "message"),
    [
        ([1.0], 0.95, "at least 2 finite `values`, got"),
        ([1.0, float("nan")], 0.95, "at least 2 finite `values`"),
        ([1.0, 2.0], 0.0, "confidence"),
        ([1.0, 2.0], 1.0, "`confidence` below 1"),
    ],
)
def test_bad_input_is_named(values: list[float], confidence: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        t_interval(values, confidence)
