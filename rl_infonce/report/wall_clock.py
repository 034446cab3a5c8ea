"""Runs at equal wall-clock: the slower one of a pair ends where it was when the faster one did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rl_infonce.checks import check_count
from rl_infonce.report.comparison import BySeed
from rl_infonce.report.formatting import counted
from rl_infonce.report.runs import Run, Scored, score_runs


class EqualTime(NamedTuple):
    """Scores of two arms whose runs of the same game and seed took the same time.

    Attributes:
        ours: Game -> seed -> score.
        theirs: Likewise.
        notes: How much longer the first arm takes, and which runs have no time.
    """

    ours: BySeed
    theirs: BySeed
    notes: list[str]


def shortened(run: Run, n_steps: int) -> Run:
    """Return a run as it was after fewer steps, at a constant rate of steps, without probes.

    Args:
        run: Stays as it is.
        n_steps: The new budget, in [1, `n_steps` of the run].
    """
    check_count("n_steps", n_steps, at_most=run.n_steps)
    within, share = run.steps <= n_steps, n_steps / run.n_steps_done
    return replace(
        run,
        n_steps=n_steps,
        n_steps_done=n_steps,
        steps=run.steps[within],
        returns=run.returns[within],
        curves={
            name: (steps[steps <= n_steps], values[steps <= n_steps])
            for name, (steps, values) in run.curves.items()
        },
        probes={},  # of the features at the end of the run, not of those at the cut
        seconds=run.seconds * share,
    )


def at_equal_time(one: Run, other: Run) -> tuple[Run, Run]:
    """Return two runs, each cut where it was when the faster one had done its budget.

    Raises:
        ValueError: If the seconds of one are not known.
    """
    seconds = [_seconds_of_budget(run) for run in (one, other)]
    if min(seconds) <= 0:
        raise ValueError(f"Expected the seconds of both runs above 0, got {seconds}. Leave it out.")
    first, second = (
        shortened(run, max(1, round(run.n_steps * min(seconds) / own)))
        for run, own in zip((one, other), seconds, strict=True)
    )
    return first, second


def _seconds_of_budget(run: Run) -> float:
    return run.seconds * run.n_steps / run.n_steps_done


def scores_at_equal_time(
    runs: Sequence[Scored], algo: str, arm: str, baseline: str, measure: str
) -> EqualTime:
    """Return the scores of two arms at equal wall-clock, each pair of runs on its own."""
    ours, theirs = (
        {(each.run.game, each.run.seed): each.run for each in runs if _is(each.run, algo, name)}
        for name in (arm, baseline)
    )
    scores: list[dict[str, dict[int, float]]] = [{}, {}]
    ratios, timeless, silent = [], [], []
    alone = [f"{game} seed {seed}" for game, seed in sorted(ours.keys() ^ theirs.keys())]
    for game, seed in sorted(ours.keys() & theirs.keys()):
        pair = ours[game, seed], theirs[game, seed]
        if min(run.seconds for run in pair) <= 0:
            timeless.append(f"{game} seed {seed}")
            continue
        ratios.append(_seconds_of_budget(pair[0]) / _seconds_of_budget(pair[1]))
        found = [getattr(cut, measure) for cut in score_runs(at_equal_time(*pair))]
        if None in found:
            silent.append(f"{game} seed {seed}")
            continue
        for by_game, score in zip(scores, found, strict=True):
            by_game.setdefault(game, {})[seed] = score
    return EqualTime(scores[0], scores[1], _notes(baseline, ratios, timeless, silent, alone))


def _is(run: Run, algo: str, arm: str) -> bool:
    return run.algo == algo and run.arm == arm


def _notes(
    baseline: str,
    ratios: Sequence[float],
    timeless: Sequence[str],
    silent: Sequence[str],
    alone: Sequence[str],
) -> list[str]:
    notes = []
    if ratios:
        notes.append(
            f"takes {np.median(ratios):.2f} times the seconds of {baseline}, the median of "
            f"{counted(len(ratios), 'pair')}"
        )
    if timeless:
        notes.append(f"left out {', '.join(timeless)}: seconds of training are not known")
    if silent:
        notes.append(f"left out {', '.join(silent)}: no episode ended in one of the two")
    if alone:
        notes.append(f"left out {', '.join(alone)}: only one of them has this run")
    return notes
