"""The tables of a report, as rows of text, for HTML and Markdown alike."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rl_infonce.report.comparison import BySeed, Comparison, compared, paired_scores
from rl_infonce.report.runs import Scored, arms_of, scores_by_arm

__all__ = [
    "Table",
    "comparison_table",
    "probe_table",
    "returns_table",
    "runs_csv",
    "to_markdown",
]

_F1ByGame = dict[str, list[Mapping[str, float]]]


class Table(NamedTuple):
    """Rows of text below a header.

    Attributes:
        header: [columns].
        rows: Each [columns].
        notes: Below the table.
    """

    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def returns_table(
    runs: Sequence[Scored], algo: str, measure: str, expected: Mapping[str, int]
) -> Table:
    """Return games by arms: mean over seeds, lowest to highest, and how many seeds there are.

    Args:
        runs: Of any algorithms.
        algo: Wanted.
        measure: "area" or "final".
        expected: Arm to the number of seeds that were planned for each game.
    """
    found, arms = scores_by_arm(runs, algo, measure), arms_of(runs)
    games = sorted({each.run.game for each in runs if each.run.algo == algo})
    rows = []
    for game in games:
        cells = [_of_seeds(found.get(a, {}).get(game, {}), expected.get(a, 0)) for a in arms]
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
    scales: Mapping[str, tuple[float, float]] | None,
    rng: np.random.Generator,
) -> Table:
    """Return arms against what each is compared with, on the games and seeds that both have.

    Args:
        pairs: Arm to its scores and the others, game -> seed -> score.
        against: What they are compared with, in words.
        scales: Game -> scores that become 0 and 1; None compares the scores as they are.
        rng: Of the bootstrap.
    """
    header = [f"against {against}", "in words", "difference", "of IQMs", "P(better)", "pairs"]
    rows, notes = [], []
    for arm, (ours, theirs) in pairs.items():
        found = compared(ours, theirs, rng=rng, scales=scales)
        rows.append([arm, *_comparison(found)])
        left_out = paired_scores(ours, theirs, scales).left_out
        notes += [f"{arm}: left out {each}" for each in left_out]
    return Table(header, rows, notes)


def _comparison(found: Comparison | None) -> list[str]:
    if found is None:
        return ["not compared, see below", "missing", "missing", "missing", "0"]
    return [
        found.verdict,
        _interval(found.difference, "+.3f"),
        _interval(found.iqm, "+.3f"),
        _interval(found.improvement, ".2f"),
        f"{found.n_pairs} in {found.n_games} games",
    ]


def _interval(interval: tuple[float, float, float], form: str) -> str:
    value, low, high = (format(each, form) for each in interval)
    return f"{value} ({low} to {high})"


def probe_table(runs: Sequence[Scored], algo: str, protocol: str) -> Table:
    """Return categories by arms: mean F1 over games and seeds, beside the untrained encoder's.

    Over the games that every column has, and of each category over those of them that have it.
    """
    own = [each for each in runs if each.run.algo == algo]
    columns = _probed(own, protocol)
    order = [name for name in ("majority", "untrained", *arms_of(runs)) if name in columns]
    games = sorted({game for column in columns.values() for game in column})
    shared = [game for game in games if all(game in columns[name] for name in order)]
    f1s = [f1 for column in columns.values() for found in column.values() for f1 in found]
    categories = sorted({category for f1 in f1s for category in f1}, key=_mean_first)
    rows = [
        [category.replace("_", " "), *_f1_row(category, [columns[name] for name in order], shared)]
        for category in categories
    ]
    notes = [_averaged({name: columns[name] for name in order}, shared)]
    for game in games:
        lacking = [name for name in order if game not in columns[name]]
        if lacking:
            notes.append(f"left out {game}: not probed for {', '.join(lacking)}")
    notes += [f"{arm}: not probed on any game" for arm in arms_of(runs) if arm not in columns]
    return Table(["mean F1 over games", "games", *order], rows, notes)


def _probed(runs: Sequence[Scored], protocol: str) -> dict[str, _F1ByGame]:
    """Return column to the F1 by category of its runs on each game."""
    columns: dict[str, _F1ByGame] = {}
    for run in (each.run for each in runs):
        for encoder, f1 in run.probes.get(protocol, {}).items():
            name = run.arm if encoder == "trained" else encoder
            columns.setdefault(name, {}).setdefault(run.game, []).append(f1)
    return columns


def _f1_row(category: str, columns: Sequence[_F1ByGame], games: Sequence[str]) -> list[str]:
    """Return how many games a category has, and its mean F1 over them in each column."""
    values = [
        {
            game: [f1[category] for f1 in column[game] if category in f1]
            for game in games
            if any(category in f1 for f1 in column[game])
        }
        for column in columns
    ]
    having = [set(by_game) for by_game in values if by_game]
    shared = sorted(set.intersection(*having)) if having else []
    cells = [
        f"{np.mean([np.mean(by_game[game]) for game in shared]):.3f}"
        if shared and by_game
        else "missing"
        for by_game in values
    ]
    return [str(len(shared)), *cells]


def _averaged(columns: Mapping[str, _F1ByGame], games: Sequence[str]) -> str:
    if not games:
        return "No game was probed for every column, so there is no average."
    runs = [f"{name} {sum(len(found[game]) for game in games)}" for name, found in columns.items()]
    return f"Over {len(games)} games ({', '.join(games)}); scores: {', '.join(runs)}."


def _mean_first(category: str) -> tuple[bool, str]:
    return category != "mean", category


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, its notes below."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    text = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in lines)
    return "\n\n".join([text, *table.notes])


def runs_csv(runs: Sequence[Scored]) -> str:
    """Return every run with its scores, as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    protocols = sorted({protocol for each in runs for protocol in each.run.probes})
    names = ["game", "algo", "arm", "seed", "n_steps", "n_episodes", "area", "final", "seconds"]
    writer.writerow([*names, *(f"f1_{protocol}" for protocol in protocols)])
    for each in runs:
        run = each.run
        f1 = [run.probes.get(p, {}).get("trained", {}).get("mean", "") for p in protocols]
        scores = ["" if score is None else score for score in (each.area, each.final)]
        cell = [run.game, run.algo, run.arm, run.seed, run.n_steps, len(run.steps)]
        writer.writerow([*cell, *scores, run.seconds, *f1])
    return text.getvalue()
