import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score

from rl_infonce.probing import score
from rl_infonce.probing.metrics import (
    bootstrap_f1_weighted,
    bootstrap_weights,
    bootstrap_widening,
    class_counts,
)

CLASSES = st.sampled_from([0, 1, 2, 7, 80, 254, 255])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(CLASSES, CLASSES), min_size=1, max_size=40))
def test_figures_equal_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = np.array(pairs, np.uint8).T
    found = score(predictions, labels)
    assert found.accuracy == pytest.approx(accuracy_score(labels, predictions))
    for ours, average in ((found.f1_weighted, "weighted"), (found.f1_macro, "macro")):
        theirs = f1_score(labels, predictions, average=average, zero_division=0)
        assert ours == pytest.approx(theirs, abs=1e-12)


def test_figures_without_frames_are_nan_without_a_warning() -> None:
    nothing = np.zeros(0, np.uint8)
    assert np.isnan(score(nothing, nothing)).all()


def _episodes(rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], ...]:
    groups = np.repeat(np.arange(5), [3, 1, 6, 2, 4])
    labels = rng.integers(0, 4, len(groups))
    return rng.integers(0, 4, len(groups)), labels, groups


def test_bootstrap_resamples_whole_episodes() -> None:
    rng = np.random.default_rng(0)
    predictions, labels, groups = _episodes(rng)
    weights = bootstrap_weights(5, 50, rng)
    assert (weights.sum(axis=1) == 5).all()
    found = bootstrap_f1_weighted(class_counts(predictions, labels, groups), weights)
    for figure, times in zip(found, weights.astype(int), strict=True):
        rows = np.concatenate([np.flatnonzero(groups == e) for e in np.repeat(range(5), times)])
        expected = f1_score(labels[rows], predictions[rows], average="weighted", zero_division=0)
        assert figure == pytest.approx(expected, abs=1e-12)


def test_bootstrap_comes_from_its_generator_alone() -> None:
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    first, again = (bootstrap_weights(4, 9, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    after = np.random.get_state()[1]  # type: ignore[index]  # noqa: NPY002
    np.testing.assert_array_equal(before, after)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bootstrap_weights(1, 3, np.random.default_rng(0)).tolist() == [[1.0]] * 3


def test_widening_is_that_of_student() -> None:
    for n_episodes in range(2, 200):
        expected = stats.t.ppf(0.975, n_episodes - 1) / stats.norm.ppf(0.975)
        expected *= (n_episodes / (n_episodes - 1)) ** 0.5
        assert bootstrap_widening(n_episodes) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("predictions", "error", "message"),
    [
        ([300, 1], ValueError, r"`predictions` in 0\.\.255, got 1\.\.300"),
        ([-1, 1], ValueError, r"`predictions` in 0\.\.255, got -1\.\.1"),
        ([0.0, 1.0], TypeError, "`predictions` to hold integers, got float64"),
        ([[0, 1]], ValueError, r"`predictions` of shape \[B\]"),
        ([0, 1, 1], ValueError, r"`predictions` of shape \[2\], got \(3,\)"),
    ],
)
def test_what_is_no_class_is_named(predictions: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        score(np.array(predictions), np.array([1, 1]))
    assert score([1, 0], [1, 0]) == (1, 1, 1)  # type: ignore[arg-type]
