"""Compute F1 in resamples of the test episodes, and the intervals that they give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_shape
from rl_infonce.probing.arrays import as_array, as_arrays
from rl_infonce.probing.data import IntArray, check_classes, check_integers
from rl_infonce.probing.metrics import (
    FloatArray,
    bootstrap_f1_weighted,
    bootstrap_weights,
    bootstrap_widening,
    class_counts,
)
from rl_infonce.probing.task import ProbingTask

_N_RESAMPLES = 1000


def resampled_f1(
    predictions: Mapping[str, npt.NDArray[Any]],
    task: ProbingTask,
    *,
    positions: IntArray | None = None,
    seed: int = 0,
) -> tuple[dict[str, FloatArray], int]:
    """Return the weighted F1 in resamples of the test groups, and the number of groups.

    The figures [R] by "mean", category and variable come from the same resamples for the same task,
    positions and seed. Arguments are those of `score_predictions`.
    """
    predictions, scored = checked_predictions(predictions, task, positions)
    rows = task.split.test[scored]
    groups = np.unique(task.group_ids[rows], return_inverse=True)[1]
    n_groups = int(groups.max()) + 1
    weights = bootstrap_weights(n_groups, _N_RESAMPLES, np.random.default_rng(seed))
    variables = {
        name: bootstrap_f1_weighted(
            class_counts(predictions[name][scored], values[rows], groups), weights
        )
        for name, values in task.labels.items()
    }
    mean, categories = averages(variables, task)
    return {"mean": mean, **categories, **variables}, n_groups


def widened_interval(
    score: float, resampled: FloatArray, n_groups: int, *, lowest: float = 0.0
) -> tuple[float, float]:
    """Return the 95 % interval around a score for other test episodes; see `ProbeScores`.

    The scores of resamples are [R]; one group gives no interval but (NaN, NaN). The lowest possible
    score is 0 for an F1 and -1 for a difference, the highest is 1.
    """
    if n_groups < 2:
        return (np.nan, np.nan)
    low, high = np.quantile(resampled, [0.025, 0.975])
    half = bootstrap_widening(n_groups) * float(high - low) / 2
    return max(score - half, lowest), min(score + half, 1.0)


def checked_predictions(
    predictions: Mapping[str, npt.NDArray[Any]], task: ProbingTask, positions: IntArray | None
) -> tuple[dict[str, npt.NDArray[Any]], IntArray]:
    """Return a class of each variable for each test frame, and the positions to score."""
    if not isinstance(predictions, Mapping):
        raise TypeError(
            "Expected `predictions` to be classes by variable, got "
            f"{type(predictions).__name__}. `probe_features` returns them beside the scores."
        )
    if set(predictions) != set(task.labels):
        raise ValueError(
            f"Expected `predictions` for {sorted(task.labels)}, got {sorted(predictions)}."
        )
    found = as_arrays("predictions", predictions)
    for name, values in found.items():
        check_shape(f"predictions[{name!r}]", values, (len(task.split.test),))
        check_classes(f"predictions[{name!r}]", values)
    if positions is None:
        return found, np.arange(len(task.split.test))
    positions = as_array(positions)
    check_shape("positions", positions, ("n",))
    check_integers("positions", positions)
    if not len(positions) or positions.min() < 0 or positions.max() >= len(task.split.test):
        got = f"{positions.min()}..{positions.max()}" if len(positions) else "none"
        raise ValueError(
            f"Expected `positions` in 0..{len(task.split.test) - 1} of the test part, at least "
            f"one of them, got {got}."
        )
    return found, positions


def averages(
    figures: Mapping[str, Any], task: ProbingTask
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the mean over categories, and that of each category over its variables.

    Figures [...] are those of every probed variable. Without categories the mean is over variables;
    categories come in the order of variables.
    """
    members: dict[str, list[Any]] = {}
    for variable in task.labels:
        for category in task.categories.get(variable, ()):
            members.setdefault(category, []).append(figures[variable])
    categories: dict[str, FloatArray] = {c: np.mean(each, axis=0) for c, each in members.items()}
    return np.mean(list((categories or figures).values()), axis=0), categories
