"""Two arms side by side: the same games, the same seeds, intervals and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.report.aggregates import interquartile_mean
from rl_infonce.report.bootstrap import bootstrap_difference, bootstrap_improvement
from rl_infonce.report.power import detectable_difference
from rl_infonce.report.run_scores import Scales, normalized
from rl_infonce.report.statistics import Interval, t_difference, verdict

FloatArray = npt.NDArray[np.float64]
BySeed = Mapping[str, Mapping[int, float]]


class Comparison(NamedTuple):
    """One arm against another.

    `difference` is the mean over games of the paired differences, with the t interval for other
    seeds; the intervals of `iqm` and `improvement` are bootstrap intervals. `detectable` is the
    difference that such pairs find in 4 of 5 experiments, or None if that cannot be told.
    """

    n_games: int
    n_pairs: int
    difference: Interval
    iqm: Interval
    improvement: Interval
    verdict: str
    detectable: float | None


def in_common(ours: BySeed, theirs: BySeed) -> tuple[dict[str, list[int]], list[str]]:
    """Return the seeds that both arms have of each game, and what is left out for want of them."""
    pairs, left_out = {}, []
    for game in sorted({*ours, *theirs}):
        one, other = set(ours.get(game, {})), set(theirs.get(game, {}))
        seeds = sorted(one & other)
        if one ^ other:
            left_out.append(f"{game}, {_listed(one ^ other)}: only one arm has a score of it")
        if len(seeds) >= 2:
            pairs[game] = seeds
        elif seeds:
            left_out.append(f"{game}: one common seed, of which no interval can be made")
    return pairs, left_out


def _listed(seeds: set[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"


class PairedScores(NamedTuple):
    """Scores [n_seeds] of two arms on the games and seeds that both have, at least 2 of each game.

    `left_out` says what only one of them has, or what cannot be scaled.
    """

    ours: dict[str, FloatArray]
    theirs: dict[str, FloatArray]
    left_out: tuple[str, ...]


def paired_scores(ours: BySeed, theirs: BySeed, scales: Scales | None = None) -> PairedScores:
    """Return the scores that two arms can be compared by; no game if there are none.

    `scales` maps a game to the scores that become 0 and 1, and games without them are left out;
    None compares the scores as they are.
    """
    pairs, left_out = in_common(ours, theirs)
    if not (ours or theirs):
        left_out.append("everything: neither of them has a score")
    if scales is not None:
        left_out += [
            f"{game}: no human score is known, and the baseline's mean return is not told from 0; "
            "`rl-infonce report --raw` compares raw scores"
            for game in pairs
            if game not in scales
        ]
        pairs = {game: seeds for game, seeds in pairs.items() if game in scales}
    x, y = (_scaled(each, pairs, scales) for each in (ours, theirs))
    return PairedScores(x, y, tuple(left_out))


def of_each_game(pairs: PairedScores) -> dict[str, PairedScores]:
    """Return game to its pairs alone; without what is left out."""
    return {
        game: PairedScores({game: ours}, {game: pairs.theirs[game]}, ())
        for game, ours in pairs.ours.items()
    }


def compared(pairs: PairedScores, *, rng: np.random.Generator) -> Comparison | None:
    """Return one arm against another on the games and seeds that both have.

    None if no game has two common seeds; `pairs.left_out` says why.
    """
    x, y = pairs.ours, pairs.theirs
    if not x:
        return None
    difference = t_difference(x, y)
    return Comparison(
        len(x),
        sum(map(len, x.values())),
        difference,
        bootstrap_difference(x, y, interquartile_mean, rng=rng),
        bootstrap_improvement(x, y, rng=rng),
        verdict(difference),
        detectable_difference(x, y),
    )


def _scaled(
    scores: BySeed,
    pairs: Mapping[str, list[int]],
    scales: Scales | None,
) -> dict[str, FloatArray]:
    values = {
        game: np.array([scores[game][seed] for seed in seeds], dtype=np.float64)
        for game, seeds in pairs.items()
    }
    return normalized(values, scales) if values and scales is not None else values
