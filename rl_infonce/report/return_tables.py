"""The tables of a report, as rows of text, for HTML and Markdown alike."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

import numpy as np

from rl_infonce.report.comparison import (
    BySeed,
    Comparison,
    compared,
    of_each_game,
    paired_scores,
)
from rl_infonce.report.formatting import counted, interval_words, notes_on_arms
from rl_infonce.report.run_scores import Scales
from rl_infonce.report.runs import Run, scores_by_arm
from rl_infonce.report.table import Table

_NO_WIDTH = 1e-9
_NO_SCATTER = "all pairs differ by the same, so their scatter cannot be told"


def returns_table(
    runs: Sequence[Run], algo: str, measure: str, expected: Mapping[str, int]
) -> Table:
    """Return games by arms: mean over seeds, lowest to highest, and how many seeds there are.

    `expected` maps each arm to the number of seeds that were planned for each game.
    """
    found, arms = scores_by_arm(runs, algo, measure), list(expected)
    games = sorted({run.game for run in runs if run.algo == algo})
    rows = []
    for game in games:
        cells = [_of_seeds(found.get(a, {}).get(game, {}), expected[a]) for a in arms]
        rows.append([game, *cells])
    return Table(["game", *arms], rows, [])


def _of_seeds(scores: Mapping[int, float], n_expected: int) -> str:
    if not scores:
        return "missing"
    values = list(scores.values())
    text = _number(float(np.mean(values)))
    if len(values) > 1:
        text += f" ({_number(min(values))} to {_number(max(values))})"
    return text if len(values) >= n_expected else f"{text}, {len(values)} of {n_expected} seeds"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def comparison_table(
    pairs: Mapping[str, tuple[BySeed, BySeed]],
    against: str,
    *,
    scales: Scales | None,
    rng: np.random.Generator,
) -> Table:
    """Return arms against what each is compared with, on the games and seeds that both have.

    Below each arm stands every game on its own, if they are several: over all, one may decide.
    `scales` maps a game to the scores that become 0 and 1; None compares the scores as they are.
    """
    header = [f"against {against}", "in words", "difference", "found in 4 of 5", "of IQMs"]
    header += ["P(better)", "pairs"]
    rows, notes = [], {}
    for arm, (ours, theirs) in pairs.items():
        found = paired_scores(ours, theirs, scales)
        overall = compared(found, rng=rng)
        rows.append([arm, *_comparison(overall)])
        notes[arm] = [f"left out {each}" for each in found.left_out]
        if overall is not None and _has_no_width(overall.difference):
            notes[arm].append(_NO_SCATTER)
        for game, alone in of_each_game(found).items() if len(found.ours) > 1 else ():
            of_game = compared(alone, rng=rng)
            rows.append([f"{arm}: {game}", *_comparison(of_game)])
            if of_game is not None and _has_no_width(of_game.difference):
                notes[arm].append(f"{game}: {_NO_SCATTER}")
    return Table(header, rows, notes_on_arms(notes))


def _has_no_width(interval: tuple[float, float, float]) -> bool:
    """Return whether an interval beside 0 is a point."""
    value, low, high = interval
    return value != 0 and high - low < _NO_WIDTH


def _comparison(found: Comparison | None) -> list[str]:
    if found is None:
        return ["not compared, see below", "missing", "missing", "missing", "missing", "0"]
    return [
        found.verdict,
        interval_words(found.difference, f"+.{_decimals(found.difference)}f"),
        _detectable(found.detectable),
        interval_words(found.iqm, f"+.{_decimals(found.iqm)}f"),
        interval_words(found.improvement, ".2f"),
        f"{found.n_pairs} in {counted(found.n_games, 'game')}",
    ]


def _detectable(difference: float | None) -> str:
    if difference is None:
        return "cannot be told"
    return f"{difference:.{_digits_after_the_point(difference)}f}"


def _decimals(interval: tuple[float, float, float]) -> int:
    """Return how many decimals of an interval say something: two digits of its half width."""
    _, low, high = interval
    return _digits_after_the_point((high - low) / 2)


def _digits_after_the_point(scale: float) -> int:
    if scale < _NO_WIDTH:
        return 3
    return max(1 - math.floor(math.log10(scale)), 0)


def runs_csv(runs: Sequence[Run]) -> str:
    """Return every run with its scores, as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    protocols = sorted({protocol for run in runs for protocol in run.probes})
    names = ["game", "algo", "arm", "seed", "n_steps", "n_episodes", "area", "final", "seconds"]
    writer.writerow([*names, *(f"f1_{protocol}" for protocol in protocols)])
    for run in runs:
        f1 = [run.probes.get(p, {}).get("trained", {}).get("mean", "") for p in protocols]
        scores = ["" if score is None else score for score in (run.area, run.final)]
        cell = [run.game, run.algo, run.arm, run.seed, run.n_steps, len(run.steps)]
        writer.writerow([*cell, *scores, run.seconds, *f1])
    return text.getvalue()
