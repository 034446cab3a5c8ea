"""What paired comparisons of these arms could have shown, from how their runs scatter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.report.comparison import BySeed, paired_scores
from rl_infonce.report.power import smallest_difference, within_task_spreads
from rl_infonce.report.scores import paired_differences

__all__ = ["Detectable", "detectable_difference"]

FloatArray = npt.NDArray[np.float64]
_ENOUGH_PAIRS = 3  # two differences say next to nothing of how differences scatter
_POWER = 0.8


class Detectable(NamedTuple):
    """The smallest difference that would mostly be found.

    Attributes:
        difference: Of the means over games, found in 80 % of such experiments.
        n_pairs: Of runs, in each game.
        scatter: What was taken for the scatter of the differences, in words.
    """

    difference: float
    n_pairs: int
    scatter: str


def detectable_difference(
    pairs: Mapping[str, tuple[BySeed, BySeed]],
    scales: Mapping[str, tuple[float, float]] | None = None,
    *,
    other: str = "baseline",
) -> Detectable | None:
    """Return the smallest difference that the paired t test of such arms finds in 4 of 5.

    From the scatter of the paired differences, pooled over arms, if each game has 3 pairs of some
    arm; else from that of the other arm's runs, as if the runs of a pair shared nothing.

    Args:
        pairs: Arm to its scores and those it is compared with, game -> seed -> score.
        scales: Game -> scores that become 0 and 1; games without are left out.
        other: What the arms are compared with, in words.

    Returns:
        None if there are no runs to tell from or they do not scatter.
    """
    differences = _differences(pairs, scales)
    enough = {game: _long_enough(found) for game, found in differences.items()}
    if enough and all(enough.values()):
        n_pairs = min(len(values) for found in enough.values() for values in found)
        spreads = [_pooled_spread(found) for found in enough.values()]
        return _detectable(spreads, n_pairs, "the scatter of the paired differences")
    runs = _runs_of_other(pairs, scales)
    if not runs:
        return None
    spreads = [math.sqrt(2) * float(spread) for spread in within_task_spreads(runs)]
    n_pairs = min(len(values) for values in runs.values())
    return _detectable(spreads, n_pairs, f"sqrt(2) times the scatter of {other}")


def _detectable(spreads: list[float], n_pairs: int, scatter: str) -> Detectable | None:
    if max(spreads) < 1e-12:  # equal scores, but for rounding
        return None
    smallest = smallest_difference(spreads, n_pairs, _POWER, paired=True)
    return Detectable(smallest, n_pairs, scatter)


def _differences(
    pairs: Mapping[str, tuple[BySeed, BySeed]],
    scales: Mapping[str, tuple[float, float]] | None,
) -> dict[str, list[FloatArray]]:
    """Return game to the paired differences of each arm that has some there."""
    found: dict[str, list[FloatArray]] = {}
    for ours, theirs in pairs.values():
        x, y, _ = paired_scores(ours, theirs, scales)
        for game, values in (paired_differences(x, y) if x else {}).items():
            found.setdefault(game, []).append(values)
    return found


def _long_enough(differences: list[FloatArray]) -> list[FloatArray]:
    return [values for values in differences if len(values) >= _ENOUGH_PAIRS]


def _pooled_spread(differences: list[FloatArray]) -> float:
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in differences)
    return math.sqrt(squares / sum(len(values) - 1 for values in differences))


def _runs_of_other(
    pairs: Mapping[str, tuple[BySeed, BySeed]],
    scales: Mapping[str, tuple[float, float]] | None,
) -> dict[str, FloatArray]:
    """Return game to the scores of the other arm, where it has two runs."""
    scores: dict[str, dict[int, float]] = {}
    for _, theirs in pairs.values():
        for game, by_seed in theirs.items():
            scores.setdefault(game, {}).update(by_seed)
    return paired_scores(scores, scores, scales).theirs
