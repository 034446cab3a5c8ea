"""The report of many runs: what the loss does to the return, and to what the features know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.report.charts import curves_svg, return_curves
from rl_infonce.report.page import details, figures, page, paragraph, section, table_html
from rl_infonce.report.power import smallest_difference, within_task_spreads
from rl_infonce.report.runs import Run, Scored, arms_of, score_runs, scores_by_arm
from rl_infonce.report.tables import (
    Table,
    comparison_table,
    probe_table,
    returns_table,
    runs_csv,
    to_markdown,
)

__all__ = ["Report", "make_report"]

FloatArray = npt.NDArray[np.float64]
_CURVES = {
    "infonce/grad_ratio": "gradient of InfoNCE / of RL",
    "infonce/mi_lower_bound": "bound on mutual information, nats",
}
_MEASURES = {"area": "mean return over the budget", "final": "mean return of its last tenth"}
_SCALE = "Differences are in human-normalised units: 0 is a random agent, 1 a human."


class Report(NamedTuple):
    """A report in three forms.

    Attributes:
        html: One page that needs nothing but itself.
        markdown: The tables.
        csv: Every run.
    """

    html: str
    markdown: str
    csv: str


def make_report(
    title: str,
    runs: Sequence[Run],
    *,
    missing: Sequence[str],
    scales: Mapping[str, tuple[float, float]] | None,
    rng: np.random.Generator,
    n_seeds: Mapping[str, int] | None = None,
) -> Report:
    """Return what finished runs say; charts need the extra `report`.

    Args:
        title: Of the page.
        runs: Finished, at least one.
        missing: What was planned and is not there, in words.
        scales: Game -> scores of a random agent and a human; None compares raw scores.
        rng: Of the bootstrap.
        n_seeds: Arm -> planned seeds; None takes what is there.

    Raises:
        ValueError: If there are no runs, or two runs are of one game, algorithm, arm and seed.
    """
    _check(runs)
    scored = score_runs(runs)
    planned = n_seeds or _most_seeds(runs)
    parts = [_summary(scored, missing)]
    texts = [f"# {title}", *(f"Missing: {each}" for each in missing)]
    for algo in dict.fromkeys(run.algo for run in runs):
        for heading, table, bars in _tables(scored, algo, planned, scales, rng):
            name = f"{algo.upper()}: {heading}"
            parts.append(
                section(
                    name, *_remarks(heading, scored, algo, scales), table_html(table, bars=bars)
                )
            )
            texts += [f"## {name}", to_markdown(table)]
        parts.append(section(f"{algo.upper()}: curves", figures(_charts(scored, algo, rng))))
    parts.append(section("How it was made", *_origins(runs)))
    return Report(page(title, parts), "\n\n".join(texts) + "\n", runs_csv(scored))


def _check(runs: Sequence[Run]) -> None:
    if not runs:
        raise ValueError("Expected at least one finished run, got none.")
    names = [(run.game, run.algo, run.arm, run.seed) for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Expected each game, algorithm, arm and seed once, got {twice} again.")


def _most_seeds(runs: Sequence[Run]) -> dict[str, int]:
    counts: dict[str, dict[str, int]] = {}
    for run in runs:
        by_game = counts.setdefault(run.arm, {})
        by_game[run.game] = by_game.get(run.game, 0) + 1
    return {arm: max(by_game.values()) for arm, by_game in counts.items()}


def _summary(scored: Sequence[Scored], missing: Sequence[str]) -> str:
    runs = [each.run for each in scored]
    games, arms = sorted({run.game for run in runs}), arms_of(scored)
    lines = [
        paragraph(
            f"{len(runs)} runs: {len(games)} games ({', '.join(games)}), arms {', '.join(arms)}."
        )
    ]
    if missing:
        lines.append(paragraph(f"Missing, and in no average: {'; '.join(missing)}."))
    return "\n".join(lines)


def _tables(
    scored: Sequence[Scored],
    algo: str,
    planned: Mapping[str, int],
    scales: Mapping[str, tuple[float, float]] | None,
    rng: np.random.Generator,
) -> list[tuple[str, Table, bool]]:
    arms = arms_of([each for each in scored if each.run.algo == algo])
    tables = []
    for measure, words in _MEASURES.items():
        if len(arms) > 1:
            compare = {"baseline": arms[0], "scales": scales, "rng": rng}
            table = comparison_table(scored, algo, measure, **compare)  # type: ignore[arg-type]
            tables.append((f"{words}, compared", table, False))
        tables.append((words, returns_table(scored, algo, measure, planned), False))
    protocols = sorted({p for each in scored for p in each.run.probes if each.run.algo == algo})
    for protocol in protocols:
        heading = f"what the features know ({protocol})"
        tables.append((heading, probe_table(scored, algo, protocol), True))
    return tables


def _remarks(
    heading: str,
    scored: Sequence[Scored],
    algo: str,
    scales: Mapping[str, tuple[float, float]] | None,
) -> list[str]:
    if not heading.endswith("compared"):
        return []
    remarks = [
        "Runs of the same game and seed are compared; 95 % t interval of the mean difference, 95 % "
        "bootstrap intervals, those of the IQM widened for few runs. An interval that holds 0 (0.5 "
        "for P) is no detectable difference."
    ]
    if scales is not None:
        remarks.append(_SCALE)
    (measure,) = (name for name, words in _MEASURES.items() if heading.startswith(words))
    smallest = _detectable(scored, algo, measure, scales)
    return [paragraph(text) for text in [*remarks, *smallest]]


def _detectable(
    scored: Sequence[Scored],
    algo: str,
    measure: str,
    scales: Mapping[str, tuple[float, float]] | None,
) -> list[str]:
    """Say what these seeds could have shown, from the scatter of the baseline's."""
    found = scores_by_arm(scored, algo, measure)
    arms = arms_of([each for each in scored if each.run.algo == algo])
    by_game = found.get(arms[0], {})
    scores = {
        game: np.array(list(seeds.values())) / _unit(game, scales)
        for game, seeds in by_game.items()
        if len(seeds) > 1 and (scales is None or game in scales)
    }
    if not any(np.ptp(values) for values in scores.values()):
        return []
    n_runs = min(len(values) for values in scores.values())
    smallest = smallest_difference(within_task_spreads(scores), n_runs)
    return [
        f"With {n_runs} seeds per arm and the scatter of {arms[0]}, a difference of {smallest:.3f} "
        "would be found in 80 % of such experiments; smaller ones would mostly be missed."
    ]


def _unit(game: str, scales: Mapping[str, tuple[float, float]] | None) -> float:
    return 1.0 if scales is None else scales[game][1] - scales[game][0]


def _charts(scored: Sequence[Scored], algo: str, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Return the charts of an algorithm: returns of every game, then what was logged."""
    runs, order = [each.run for each in scored if each.run.algo == algo], arms_of(scored)
    kinds: list[tuple[str, Callable[[Sequence[Run]], tuple[FloatArray, FloatArray] | None]]] = [
        ("return", return_curves),
        *((words, lambda group, tag=tag: _logged(group, tag)) for tag, words in _CURVES.items()),
    ]
    charts = []
    for ylabel, read in kinds:
        for game in sorted({run.game for run in runs}):
            arms = {}
            for arm in order:
                group = [run for run in runs if (run.game, run.arm) == (game, arm)]
                found = read(group) if group else None
                if found is not None and np.isfinite(found[1]).all(axis=1).any():
                    arms[arm] = found
            if arms:
                svg = curves_svg(game, arms, ylabel=ylabel, order=order, rng=rng)
                charts.append((f"{ylabel} on {game}: {', '.join(arms)}", svg))
    return charts


def _logged(runs: Sequence[Run], tag: str) -> tuple[FloatArray, FloatArray] | None:
    """Return the steps and values [P, n_runs] of a curve on the steps that all runs logged."""
    if not all(tag in run.curves for run in runs):
        return None
    common = sorted(set.intersection(*(set(run.curves[tag][0].tolist()) for run in runs)))
    if not common:
        return None
    columns = [dict(zip(*(a.tolist() for a in run.curves[tag]), strict=True)) for run in runs]
    return np.array(common, float), np.array([[c[step] for c in columns] for step in common])


def _origins(runs: Sequence[Run]) -> list[str]:
    versions = {f"{name} {version}" for run in runs for name, version in run.versions.items()}
    machines = sorted({run.machine for run in runs if run.machine})
    hours = sum(run.seconds for run in runs) / 3600
    commands = "\n".join(dict.fromkeys(run.command for run in runs if run.command))
    return [
        paragraph(f"{hours:.1f} hours of training on {'; '.join(machines) or 'unknown machines'}."),
        paragraph(f"Versions: {', '.join(sorted(versions))}."),
        details(f"The commands of the {len(runs)} runs", commands),
    ]
