"""Scales of scores where no human score is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_infonce.report.run_scores import Scales
from rl_infonce.report.runs import Scored, scores_by_arm

_FEWEST_SPREADS = 2.0
"""Standard deviations of a baseline's runs that its mean return lies from 0, to be a unit."""


def baseline_scales(scored: Sequence[Scored], algo: str, baseline: str, known: Scales) -> Scales:
    """Return scales of an algorithm's games that are not among those known, in baseline units.

    The unit of a game is the size of the baseline's mean return over the budget, the area under its
    training curve, as the mean over its seeds: returns may be negative. A game without any has no
    scale, nor has one whose baseline returns about 0: so small a unit would let this game decide
    over all others.
    """
    areas = scores_by_arm(scored, algo, "area").get(baseline, {})
    scales = {}
    for game, seeds in areas.items():
        returns = np.array(list(seeds.values()), dtype=np.float64)
        unit, spread = abs(float(returns.mean())), float(returns.std(ddof=len(returns) > 1))
        if game not in known and unit > _FEWEST_SPREADS * spread:
            scales[game] = (0.0, unit)
    return scales
