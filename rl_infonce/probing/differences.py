"""Measure how much more one encoder knows than another, on the same test frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy.typing as npt

from rl_infonce.probing.data import IntArray
from rl_infonce.probing.resampling import resampled_f1, widened_interval
from rl_infonce.probing.scores import averaged_scores
from rl_infonce.probing.task import ProbingTask

Predictions = Mapping[str, npt.NDArray[Any]]


class F1Difference(NamedTuple):
    """A difference of weighted F1 in [-1, 1], with its 95 % interval for other test episodes."""

    value: float
    low: float
    high: float


def f1_differences(
    ours: Predictions,
    theirs: Predictions,
    task: ProbingTask,
    *,
    positions: IntArray | None = None,
    seed: int = 0,
) -> dict[str, F1Difference]:
    """Return how much higher the first predictions score on the test labels than the second.

    The bootstrap draws the same groups of episodes for both: what makes a group hard for both
    cancels, so the interval is narrower than those of two scores side by side suggest. It does not
    hold how scores vary with the split and the training: take several seeds.

    Args:
        ours: Classes [n_test] by variable, for every variable of the task; `probe_features` returns
            them beside the scores.
        theirs: Other predictions for the same task, in the same form.
        task: Split and labels.
        positions: Which test frames to score, as for `score_predictions`; under `anand2019` the
            reported scores are those of `scored_positions(task, protocol="anand2019", seed=...)`.
        seed: Seed of the bootstrap.

    Returns:
        The differences by "mean", category and variable; (value, NaN, NaN) if there is only one
        test episode.
    """
    own, other = (_f1(each, task, positions) for each in (ours, theirs))
    own_resampled, n_groups = resampled_f1(ours, task, positions=positions, seed=seed)
    other_resampled, _ = resampled_f1(theirs, task, positions=positions, seed=seed)
    found = {}
    for name, f1 in own.items():
        value = f1 - other[name]
        spread = own_resampled[name] - other_resampled[name]
        interval = widened_interval(value, spread, n_groups, lowest=-1.0)
        found[name] = F1Difference(value, *interval)
    return found


def _f1(
    predictions: Predictions, task: ProbingTask, positions: IntArray | None
) -> dict[str, float]:
    mean, categories, variables = averaged_scores(predictions, task, positions=positions)
    return {
        name: each.f1_weighted for name, each in {"mean": mean, **categories, **variables}.items()
    }
