"""Runs at equal wall-clock: those of the slower arm end where they were when the others did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rl_infonce.report.comparison import BySeed
from rl_infonce.report.formatting import counted
from rl_infonce.report.runs import Run


class EqualTime(NamedTuple):
    """Scores of two arms whose runs took the same time.

    The notes say how much longer the first arm takes on each game, and which runs have no time.
    """

    ours: BySeed
    theirs: BySeed
    notes: list[str]


def at_equal_time(one: Run, other: Run, ratio: float) -> tuple[Run, Run]:
    """Return two runs with the budgets that they had done when the faster one had done its own.

    Each is taken to train at a constant rate of steps.

    Args:
        one: A run.
        other: Another one.
        ratio: Seconds that `one` takes for its budget, over those that `other` takes for its own.
    """
    first, second = (
        replace(run, n_steps=max(1, round(run.n_steps * min(1.0, share))))
        for run, share in ((one, 1 / ratio), (other, ratio))
    )
    return first, second


def _seconds_of_budget(run: Run) -> float:
    return run.seconds * run.n_steps / run.n_steps_done


def scores_at_equal_time(
    runs: Sequence[Run], algo: str, arm: str, baseline: str, measure: str
) -> EqualTime:
    """Return the scores of two arms at equal wall-clock.

    The times of an arm are in the median proportion over its pairs of runs of a game: that of a
    single pair is mostly what else the machine did.
    """
    ours, theirs = _runs_of_arm(runs, algo, arm), _runs_of_arm(runs, algo, baseline)
    pairs = {name: (ours[name], theirs[name]) for name in sorted(ours.keys() & theirs.keys())}
    timed = {name: pair for name, pair in pairs.items() if _is_timed(pair)}
    ratios: dict[str, list[float]] = {}
    for (game, _), (one, other) in timed.items():
        ratios.setdefault(game, []).append(_seconds_of_budget(one) / _seconds_of_budget(other))
    found = {
        name: [getattr(cut, measure) for cut in at_equal_time(*pair, _median(ratios[name[0]]))]
        for name, pair in timed.items()
    }
    known = {name: scores for name, scores in found.items() if None not in scores}
    left_out = {
        "seconds of training are not known": _named(pairs.keys() - timed.keys()),
        "no episode ended in one of the two": _named(timed.keys() - known.keys()),
        "only one of them has this run": _named(ours.keys() ^ theirs.keys()),
    }
    return EqualTime(_by_seed(known, 0), _by_seed(known, 1), _notes(baseline, ratios, left_out))


def _by_seed(found: Mapping[tuple[str, int], Sequence[float]], place: int) -> BySeed:
    scores: dict[str, dict[int, float]] = {}
    for (game, seed), of_pair in found.items():
        scores.setdefault(game, {})[seed] = of_pair[place]
    return scores


def _median(ratios: Sequence[float]) -> float:
    return float(np.median(ratios))


def _is_timed(pair: tuple[Run, Run]) -> bool:
    return min(run.seconds for run in pair) > 0


def _named(runs: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{game} seed {seed}" for game, seed in sorted(runs)]


def _runs_of_arm(runs: Sequence[Run], algo: str, arm: str) -> dict[tuple[str, int], Run]:
    """Return game and seed to the run."""
    own = (run for run in runs if run.algo == algo and run.arm == arm)
    return {(run.game, run.seed): run for run in own}


def _notes(
    baseline: str, ratios: Mapping[str, Sequence[float]], left_out: Mapping[str, Sequence[str]]
) -> list[str]:
    notes = [f"left out {', '.join(names)}: {why}" for why, names in left_out.items() if names]
    if not ratios:
        return notes
    times = ", ".join(
        f"{game} {_median(found):.2f} ({counted(len(found), 'pair')})"
        for game, found in ratios.items()
    )
    return [f"takes this many times the seconds of {baseline}, a median by game: {times}", *notes]
