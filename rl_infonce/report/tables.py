"""The tables of a report, as rows of text, for HTML and Markdown alike."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rl_infonce.report.comparison import Comparison, compared
from rl_infonce.report.runs import Scored, arms_of, scores_by_arm

__all__ = [
    "Table",
    "comparison_table",
    "probe_table",
    "returns_table",
    "runs_csv",
    "to_markdown",
]


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
    runs: Sequence[Scored],
    algo: str,
    measure: str,
    *,
    baseline: str,
    scales: Mapping[str, tuple[float, float]] | None,
    rng: np.random.Generator,
) -> Table:
    """Return every arm against the baseline, on the seeds that both have."""
    found = scores_by_arm(runs, algo, measure)
    comparisons = {
        arm: compared(found.get(arm, {}), found.get(baseline, {}), rng=rng, scales=scales)
        for arm in arms_of(runs)
        if arm != baseline
    }
    return _comparisons(comparisons, f"against {baseline}")


def _comparisons(comparisons: Mapping[str, Comparison | None], what: str) -> Table:
    header = [what, "in words", "difference", "of IQMs", "P(better)", "pairs"]
    rows, notes = [], []
    for arm, found in comparisons.items():
        if found is None:
            few = "fewer than 2 common seeds"
            rows.append([arm, few, "missing", "missing", "missing", "0"])
            continue
        rows.append(
            [
                arm,
                found.verdict,
                _interval(found.difference, "+.3f"),
                _interval(found.iqm, "+.3f"),
                _interval(found.improvement, ".2f"),
                f"{found.n_pairs} in {found.n_games} games",
            ]
        )
        notes += [f"{arm}: left out {each}" for each in found.left_out]
    return Table(header, rows, notes)


def _interval(interval: tuple[float, float, float], form: str) -> str:
    value, low, high = (format(each, form) for each in interval)
    return f"{value} ({low} to {high})"


def probe_table(runs: Sequence[Scored], algo: str, protocol: str) -> Table:
    """Return categories by arms: mean F1 over games and seeds, beside the untrained encoder's."""
    arms = arms_of(runs)
    columns: dict[str, dict[str, dict[str, list[float]]]] = {}
    for run in (each.run for each in runs if each.run.algo == algo):
        for encoder, scores in run.probes.get(protocol, {}).items():
            name = run.arm if encoder == "trained" else encoder
            for category, f1 in scores.items():
                by_game = columns.setdefault(name, {}).setdefault(category, {})
                by_game.setdefault(run.game, []).append(f1)
    order = [name for name in ("majority", "untrained", *arms) if name in columns]
    categories = sorted({c for column in columns.values() for c in column}, key=_mean_first)
    rows = [
        [category.replace("_", " "), *(_mean_of(columns[name].get(category, {})) for name in order)]
        for category in categories
    ]
    return Table(["mean F1 over games", *order], rows, [])


def _mean_first(category: str) -> tuple[bool, str]:
    return category != "mean", category


def _mean_of(by_game: Mapping[str, Sequence[float]]) -> str:
    if not by_game:
        return "missing"
    return f"{np.mean([np.mean(values) for values in by_game.values()]):.3f}"


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
