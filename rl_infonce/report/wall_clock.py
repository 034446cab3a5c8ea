"""Runs at equal wall-clock: the slower one of a pair ends where it was when the faster one did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rl_infonce.report.comparison import BySeed
from rl_infonce.report.formatting import counted
from rl_infonce.report.runs import Run, Scored, score_runs


class EqualTime(NamedTuple):
    """Scores of two arms whose runs of the same game and seed took the same time.

    The notes say how much longer the first arm takes, and which runs have no time.
    """

    ours: BySeed
    theirs: BySeed
    notes: list[str]


def at_equal_time(one: Run, other: Run) -> tuple[Run, Run]:
    """Return two runs with the budgets that they had done when the faster one had done its own.

    Each is taken to train at a constant rate of steps; their seconds are known.
    """
    seconds = [_seconds_of_budget(run) for run in (one, other)]
    first, second = (
        replace(run, n_steps=max(1, round(run.n_steps * min(seconds) / own)))
        for run, own in zip((one, other), seconds, strict=True)
    )
    return first, second


def _seconds_of_budget(run: Run) -> float:
    return run.seconds * run.n_steps / run.n_steps_done


def scores_at_equal_time(
    runs: Sequence[Scored], algo: str, arm: str, baseline: str, measure: str
) -> EqualTime:
    """Return the scores of two arms at equal wall-clock, each pair of runs on its own."""
    ours, theirs = _runs_of_arm(runs, algo, arm), _runs_of_arm(runs, algo, baseline)
    scores: list[dict[str, dict[int, float]]] = [{}, {}]
    ratios, timeless, silent = [], [], []
    for game, seed in sorted(ours.keys() & theirs.keys()):
        pair = ours[game, seed], theirs[game, seed]
        if min(pair[0].seconds, pair[1].seconds) <= 0:
            timeless.append(f"{game} seed {seed}")
            continue
        ratios.append(_seconds_of_budget(pair[0]) / _seconds_of_budget(pair[1]))
        found = [getattr(cut, measure) for cut in score_runs(at_equal_time(*pair))]
        if None in found:
            silent.append(f"{game} seed {seed}")
            continue
        for by_game, score in zip(scores, found, strict=True):
            by_game.setdefault(game, {})[seed] = score
    left_out = {
        "seconds of training are not known": timeless,
        "no episode ended in one of the two": silent,
        "only one of them has this run": [
            f"{game} seed {seed}" for game, seed in sorted(ours.keys() ^ theirs.keys())
        ],
    }
    return EqualTime(scores[0], scores[1], _notes(baseline, ratios, left_out))


def _runs_of_arm(runs: Sequence[Scored], algo: str, arm: str) -> dict[tuple[str, int], Run]:
    """Return game and seed to the run."""
    found = (each.run for each in runs if each.run.algo == algo and each.run.arm == arm)
    return {(run.game, run.seed): run for run in found}


def _notes(
    baseline: str, ratios: Sequence[float], left_out: Mapping[str, Sequence[str]]
) -> list[str]:
    notes = [f"left out {', '.join(names)}: {why}" for why, names in left_out.items() if names]
    if not ratios:
        return notes
    median = f"the median of {counted(len(ratios), 'pair')}"
    return [f"takes {np.median(ratios):.2f} times the seconds of {baseline}, {median}", *notes]
