"""Two arms side by side: the same games, the same seeds, intervals and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rl_infonce.report.aggregates import interquartile_mean
from rl_infonce.report.bootstrap import bootstrap_difference, bootstrap_improvement
from rl_infonce.report.statistics import Interval, t_difference, verdict

__all__ = ["Comparison", "compared", "in_common"]

BySeed = Mapping[str, Mapping[int, float]]


class Comparison(NamedTuple):
    """One arm against another.

    Attributes:
        n_games: Compared.
        n_pairs: Of runs with the same game and seed.
        difference: Mean over games of the paired differences, t interval for other seeds.
        iqm: Difference of interquartile means, bootstrap interval widened for few runs.
        improvement: Probability that a run of the first arm is better, bootstrap interval.
        verdict: Of the difference, in words.
        left_out: What was not compared, and why.
    """

    n_games: int
    n_pairs: int
    difference: Interval
    iqm: Interval
    improvement: Interval
    verdict: str
    left_out: tuple[str, ...]


def in_common(ours: BySeed, theirs: BySeed) -> tuple[dict[str, list[int]], list[str]]:
    """Return the seeds that both arms have of each game, and what is left out for want of them."""
    pairs, left_out = {}, []
    for game in sorted({*ours, *theirs}):
        one, other = set(ours.get(game, {})), set(theirs.get(game, {}))
        seeds = sorted(one & other)
        if one ^ other:
            left_out.append(f"{game}: seeds {_listed(one ^ other)} that only one of them has")
        if len(seeds) >= 2:
            pairs[game] = seeds
        elif seeds:
            left_out.append(f"{game}: one common seed, of which no interval can be made")
    return pairs, left_out


def _listed(seeds: set[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))


def compared(
    ours: BySeed,
    theirs: BySeed,
    *,
    rng: np.random.Generator,
    scales: Mapping[str, tuple[float, float]] | None = None,
) -> Comparison | None:
    """Return one arm against another on the games and seeds that both have.

    Args:
        ours: Game -> seed -> score.
        theirs: Likewise.
        rng: Of the bootstrap.
        scales: Game -> scores that become 0 and 1; games without are left out. None compares the
            scores as they are.

    Returns:
        None if no game has two common seeds.
    """
    pairs, left_out = in_common(ours, theirs)
    if scales is not None:
        left_out += [f"{game}: no human score is known" for game in pairs if game not in scales]
        pairs = {game: seeds for game, seeds in pairs.items() if game in scales}
    if not pairs:
        return None
    x, y = (
        {game: _scaled(each, game, pairs[game], scales) for game in pairs}
        for each in (ours, theirs)
    )
    difference = t_difference(x, y, paired=True)
    return Comparison(
        len(pairs),
        sum(map(len, pairs.values())),
        difference,
        bootstrap_difference(x, y, interquartile_mean, paired=True, rng=rng, widen=True),
        bootstrap_improvement(x, y, paired=True, rng=rng),
        verdict(difference).word,
        tuple(left_out),
    )


def _scaled(
    scores: BySeed,
    game: str,
    seeds: list[int],
    scales: Mapping[str, tuple[float, float]] | None,
) -> np.ndarray:
    values = np.array([scores[game][seed] for seed in seeds])
    if scales is None:
        return values
    low, high = scales[game]
    return (values - low) / (high - low)
