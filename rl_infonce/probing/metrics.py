"""F1 and accuracy from counts per class, so that a bootstrap over episodes is one product."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_shape
from rl_infonce.probing.arrays import as_array
from rl_infonce.probing.data import N_CLASSES, check_classes

# 0.975 quantiles of the normal distribution, and of Student's for 1, 2, ... degrees of freedom
_Z = 1.959964
_T = (12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.306, 2.26216, 2.22814)
FloatArray = npt.NDArray[np.float64]


class Score(NamedTuple):
    """Three figures of one variable, or means of them; in [0, 1], as scikit-learn computes them.

    Attributes:
        f1_weighted: Mean F1 of the classes, weighted by how often each is true, as Anand et al.
            2019 report it; it can lie below both precision and recall.
        f1_macro: Mean F1 of the classes that are labelled or predicted; each counts the same.
        accuracy: Share of frames whose prediction is the label.
    """

    f1_weighted: float
    f1_macro: float
    accuracy: float


class ClassCounts(NamedTuple):
    """Numbers of frames per class, [..., 256] each: correct, labelled and predicted as it."""

    hits: FloatArray
    labelled: FloatArray
    predicted: FloatArray


def class_counts(
    predictions: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    groups: npt.NDArray[Any] | None = None,
) -> ClassCounts:
    """Count frames per class [256], or per group and class [groups, 256].

    Groups are integers from 0 on, such as numbered episodes.
    """
    labels, predictions = (
        _checked_classes(name, values)
        for name, values in (("labels", labels), ("predictions", predictions))
    )
    check_shape("predictions", predictions, labels.shape)
    offsets = np.zeros(len(labels), np.int64) if groups is None else np.asarray(groups, np.int64)
    n_groups = int(offsets.max(initial=0)) + 1
    predicted_cell = offsets * N_CLASSES + predictions
    labelled_cell = offsets * N_CLASSES + labels
    hit_cell = labelled_cell[predictions == labels]
    shape = (N_CLASSES,) if groups is None else (n_groups, N_CLASSES)
    return ClassCounts(
        *(
            np.bincount(cells, minlength=n_groups * N_CLASSES).reshape(shape).astype(np.float64)
            for cells in (hit_cell, labelled_cell, predicted_cell)
        )
    )


def _checked_classes(name: str, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    classes = as_array(values)
    check_shape(name, classes, ("B",))
    check_classes(name, classes)
    return classes.astype(np.int64)


def weighted_f1_of(counts: ClassCounts) -> FloatArray:
    """Return the mean F1 [...] of the classes, weighted by their true frequency."""
    total = counts.labelled.sum(axis=-1)
    return _ratio((_class_f1(counts) * counts.labelled).sum(axis=-1), total)


def macro_f1_of(counts: ClassCounts) -> FloatArray:
    """Return the mean F1 [...] of the classes that are labelled or predicted."""
    occurring = (counts.labelled + counts.predicted > 0).sum(axis=-1)
    return _ratio(_class_f1(counts).sum(axis=-1), occurring.astype(np.float64))


def _class_f1(counts: ClassCounts) -> FloatArray:
    # 2 TP / (2 TP + FP + FN), and 0 where a class neither occurs nor is predicted
    occurrences = counts.labelled + counts.predicted
    return 2 * counts.hits / np.where(occurrences > 0, occurrences, 1)


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return the ratio, NaN where the denominator is 0."""
    empty = denominator == 0
    return np.asarray(np.where(empty, np.nan, numerator / np.where(empty, 1, denominator)))


def score(predictions: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Score:
    """Return the figures of predictions [B] of classes [B] in 0..255, NaN without frames.

    Raises:
        TypeError: If they are not integers.
        ValueError: If the shapes differ or a class is out of range.

    Example:
        >>> score(np.array([1, 1, 2]), np.array([1, 2, 2])).f1_weighted
        0.6666666666666666
    """
    counts = class_counts(predictions, labels)
    accuracy = _ratio(counts.hits.sum(axis=-1), counts.labelled.sum(axis=-1))
    figures = (weighted_f1_of(counts), macro_f1_of(counts), accuracy)
    return Score(*(float(figure) for figure in figures))


def bootstrap_weights(n_episodes: int, n_resamples: int, rng: np.random.Generator) -> FloatArray:
    """Return how often each episode occurs in each resample, [n_resamples, n_episodes]."""
    shares = np.full(n_episodes, 1 / n_episodes)
    return rng.multinomial(n_episodes, shares, size=n_resamples).astype(np.float64)


def bootstrap_widening(n_episodes: int) -> float:
    """Return the factor that a mean's 95 % percentile interval lacks: sqrt(n / (n - 1)) t / z.

    A resample scatters less than the n >= 2 new episodes, and how much these scatter is also
    uncertain (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"). It is exact to 0.2
    %.
    """
    freedom = n_episodes - 1
    expanded = _Z + 2.3723 / freedom + 2.8225 / freedom**2  # Fisher and Cornish 1960
    t = _T[freedom - 1] if freedom <= len(_T) else expanded
    return math.sqrt(n_episodes / freedom) * t / _Z


def bootstrap_f1_weighted(per_episode: ClassCounts, weights: FloatArray) -> FloatArray:
    """Return the weighted F1 [R] of each resample of episodes.

    `weights` [R, episodes] say how often each resample holds each episode. Frames of one episode
    are not independent, so whole episodes are resampled (Efron and Tibshirani 1993, chapter 8).
    """
    return weighted_f1_of(ClassCounts(*(weights @ counts for counts in per_episode)))
