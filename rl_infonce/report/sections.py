"""The tables of one algorithm with what must be said about them, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rl_infonce.report.comparison import BySeed
from rl_infonce.report.formatting import notes_on_arms
from rl_infonce.report.probe_tables import probe_table, probe_table_by_game, with_references
from rl_infonce.report.return_tables import comparison_table, returns_table
from rl_infonce.report.run_scores import Scales
from rl_infonce.report.runs import Run, arms_of, mean_f1, scores_by_arm
from rl_infonce.report.table import Table
from rl_infonce.report.wall_clock import scores_at_equal_time

Pairs = Mapping[str, tuple[BySeed, BySeed]]
_FEWEST_SPREADS = 2.0  # between a baseline's runs, that its mean return lies from 0 to be a unit
MEASURES = {"area": "mean return over the budget", "final": "mean return of its last tenth"}
HOW_COMPARED = (
    "The mean return over the budget is that of its hundredths: of the episodes that ended in "
    "each, or where none did, of the last hundredth before it, and before the first episode ended,"
    " of that one. So a return counts from the end of its episode on. Runs of the same game and "
    "seed are compared. `difference` is their mean difference with its 95 % t interval, for other "
    "seeds of these games: each game counts the same, and nothing is said of other games. `in "
    "words` is of `difference` alone: where its interval holds 0, no difference was detected. The "
    "other intervals are 95 % bootstrap intervals: that of the IQMs is widened for few runs, that "
    "of P(better), the probability that a run scores above a run of the other arm, whatever their "
    "seeds, is too narrow for few, and has no width where on each game all runs of one arm lie "
    "above, or all below, those of the other. `found in 4 of 5` is how large a true difference "
    "must be for 4 of 5 such experiments to detect it, estimated from the scatter of the pairs. "
    "Few pairs tell that badly: in 95 % of experiments with one game the true share is 4 to 10 in "
    "10 with a dozen pairs, and 1 to 10 with three."
)
_SCALE = "Differences are in human-normalised units: 0 is a random agent, 1 a human."
_UNITS = (
    "No human score is known of {}: there, differences are in units of the size of the baseline's "
    "mean return over the budget, so that 0.1 is a tenth of it. That unit counts as known: how its "
    "runs scatter is in no interval."
)
_RAW = "Differences are raw points, averaged over games: the game with the largest scores decides."
_F1 = "Differences are of the mean F1, weighted by class, of the probes of each run's features."
_UNTRAINED = "Each run's features against those of the untrained encoder that was probed with it."
_ONE_DRAW = (
    "Not compared with untrained features: all runs of a game were probed beside the same "
    "untrained weights, one draw of them. Without `seeds` in [probe], each run has its own."
)
_SPREAD = "Raw points: the mean over seeds, in brackets the lowest and the highest, no interval."
_TIME = (
    "Runs of the slower arm end where they were when those of the faster one had done their "
    "budget; each is scored over the steps it has done by then. How many times the seconds an arm "
    "takes is the median over its pairs of runs of a game, each of which is taken to train at "
    "a constant rate of steps, that of its sessions that ended: a killed session leaves no time. "
    "That median counts as known: how times scatter is in no interval. On a shared machine, times "
    "are only rough."
)


class Part(NamedTuple):
    """A table of the page, with sentences that say how to read it.

    The numbers of a heat map are shares of 1 that shade their cells.
    """

    heading: str
    table: Table
    remarks: list[str]
    is_heat_map: bool = False


def parts_of(
    runs: Sequence[Run],
    algo: str,
    planned: Mapping[str, int],
    scales: Scales | None,
    about: Sequence[str],
    rng: np.random.Generator,
) -> list[Part]:
    """Return the tables of an algorithm: returns, returns at equal wall-clock, features.

    `planned` maps an arm to the number of seeds that were planned for each game, the one first that
    others are compared with. `scales` and `about` are those of `scaled_by`.
    """
    own = [run for run in runs if run.algo == algo]
    other, *arms = planned
    parts = []
    for measure, words in MEASURES.items():
        pairs = _against_first(runs, algo, measure, planned)
        heading = f"{words}, compared"
        silent = _without_episodes(own, measure)
        parts += _comparison(heading, pairs, other, scales, rng, about, silent)
        table = returns_table(runs, algo, measure, planned)
        parts.append(Part(words, table._replace(notes=[*silent, *table.notes]), [_SPREAD]))
    for measure, words in MEASURES.items():
        pairs, notes = _at_equal_time(runs, algo, measure, other, arms)
        heading = f"{words}, at equal wall-clock, compared"
        parts += _comparison(heading, pairs, other, scales, rng, about, [_TIME, *notes])
    for protocol in sorted({protocol for run in own for protocol in run.probes}):
        parts += _features(runs, algo, protocol, planned, rng)
    return parts


def scaled_by(
    runs: Sequence[Run], algo: str, baseline: str, human: Scales | None
) -> tuple[Scales | None, list[str]]:
    """Return the scales of an algorithm's games, and what they are in words."""
    if human is None:
        return None, [_RAW]
    by_baseline = _baseline_scales(runs, algo, baseline, human)
    has_human = any(run.algo == algo and run.game in human for run in runs)
    return {**human, **by_baseline}, [
        *([_SCALE] if has_human or not by_baseline else []),
        *([_UNITS.format(", ".join(sorted(by_baseline)))] if by_baseline else []),
    ]


def _baseline_scales(runs: Sequence[Run], algo: str, baseline: str, known: Scales) -> Scales:
    """Return scales of an algorithm's games that are not among those known, in baseline units.

    The unit of a game is the size of the baseline's mean return over the budget, the area under its
    training curve, as the mean over its seeds: returns may be negative. A game without any has no
    scale, nor has one whose baseline returns about 0: so small a unit would let this game decide
    over all others.
    """
    areas = scores_by_arm(runs, algo, "area").get(baseline, {})
    scales = {}
    for game, seeds in areas.items():
        returns = np.array(list(seeds.values()), dtype=np.float64)
        unit, spread = abs(float(returns.mean())), float(returns.std(ddof=len(returns) > 1))
        if game not in known and unit > _FEWEST_SPREADS * spread:
            scales[game] = (0.0, unit)
    return scales


def _features(
    runs: Sequence[Run],
    algo: str,
    protocol: str,
    planned: Mapping[str, int],
    rng: np.random.Generator,
) -> list[Part]:
    heading, other = f"what the features know ({protocol})", next(iter(planned))
    pairs = _against_first(runs, algo, mean_f1(protocol), planned)
    trained = scores_by_arm(runs, algo, mean_f1(protocol))
    untrained = scores_by_arm(runs, algo, mean_f1(protocol, "untrained"))
    gains = {
        arm: (trained.get(arm, {}), untrained[arm]) for arm in arms_of(runs) if arm in untrained
    }
    is_one_draw = _shares_draws([run for run in runs if run.algo == algo])
    return [
        *_comparison(f"{heading}, compared", pairs, other, None, rng, [_F1]),
        *_comparison(
            f"{heading}, with untrained features compared",
            {} if is_one_draw else gains,
            "the untrained encoder",
            None,
            rng,
            [_UNTRAINED, _F1],
        ),
        Part(
            heading,
            probe_table(runs, algo, protocol),
            [_ONE_DRAW] if is_one_draw else [],
            is_heat_map=True,
        ),
        Part(
            f"{heading}, game by game",
            probe_table_by_game(runs, algo, protocol, with_references(planned)),
            [],
            is_heat_map=True,
        ),
    ]


def _shares_draws(runs: Sequence[Run]) -> bool:
    """Return whether several runs of a game and an arm were probed beside the same weights."""
    draws = [(run.game, run.arm, seed) for run in runs for seed in run.probe_seeds]
    return len(set(draws)) < len(draws)


def _without_episodes(own: Sequence[Run], measure: str) -> list[str]:
    """Return which runs have no score for want of an episode, in words, a game each."""
    silent: dict[str, dict[str, list[str]]] = {}
    for run in own:
        if getattr(run, measure) is None:
            seeds = silent.setdefault(run.game, {}).setdefault(run.arm, [])
            seeds.append(str(run.seed))
    return [
        f"{game}: no episode ended in it, no score: "
        + "; ".join(
            f"{arm}, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
            for arm, seeds in arms.items()
        )
        for game, arms in silent.items()
    ]


def _against_first(
    runs: Sequence[Run],
    algo: str,
    measure: str | Callable[[Run], float | None],
    planned: Mapping[str, int],
) -> Pairs:
    first, *arms = planned
    found = scores_by_arm(runs, algo, measure)
    return {arm: (found.get(arm, {}), found.get(first, {})) for arm in arms}


def _at_equal_time(
    runs: Sequence[Run], algo: str, measure: str, other: str, arms: Sequence[str]
) -> tuple[Pairs, list[str]]:
    found = {arm: scores_at_equal_time(runs, algo, arm, other, measure) for arm in arms}
    notes = notes_on_arms({arm: each.notes for arm, each in found.items()})
    return {arm: (each.ours, each.theirs) for arm, each in found.items()}, notes


def _comparison(
    heading: str,
    pairs: Pairs,
    against: str,
    scales: Scales | None,
    rng: np.random.Generator,
    about: Sequence[str],
    notes: Sequence[str] = (),
) -> list[Part]:
    """Return the table of pairs with how to read it, or nothing if there is no pair of arms."""
    if not pairs:
        return []
    table = comparison_table(pairs, against, scales=scales, rng=rng)
    table = table._replace(notes=[*notes, *table.notes])
    return [Part(heading, table, list(about))]
