"""Scales of scores where no human score is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rl_infonce.report.runs import Scored, arms_of, scores_by_arm

Scales = Mapping[str, tuple[float, float]]


def baseline_scales(scored: Sequence[Scored], algo: str, known: Scales) -> Scales:
    """Return scales of an algorithm's games that are not among those known, in baseline units.

    The unit of a game is the size of the baseline's mean return over the budget, the area under its
    training curve, as the mean over its seeds: returns may be negative. A game without any, or
    whose baseline returns 0, has no scale.
    """
    runs = [each for each in scored if each.run.algo == algo]
    areas = scores_by_arm(runs, algo, "area").get(arms_of(runs)[0], {}) if runs else {}
    units = {
        game: abs(float(np.mean(list(seeds.values()))))
        for game, seeds in areas.items()
        if game not in known
    }
    return {game: (0.0, unit) for game, unit in units.items() if unit > 0}
