"""Tables and the picture of a study of regimes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
from regime_grids import Grid, runs_of
from regime_scores import (
    BASELINE,
    FEWEST_SEEDS,
    LOSS,
    PLACEBO,
    Row,
    difference,
    effect,
    ending,
    in_units,
    measured,
)
from regime_units import scales

from rl_infonce.report.formatting import interval_words
from rl_infonce.report.statistics import Interval, t_interval
from rl_infonce.report.table import markdown_table

NOISES = {"White": "white noise", "Drifting": "noise that drifts"}
"""Words in the ids of tasks, by distractors.py."""


def table(grid: Grid, output: Path) -> str:
    """Return areas by task and arm, and differences between arms over all fresh tasks."""
    runs = runs_of(grid, output)
    found, endings = measured(runs), measured(runs, ending)
    scale = scales(grid, found)
    rows = []
    for (task, arm), own in sorted(found.items(), key=lambda each: each[0][0]):
        mean = _spread(list(own.values()))
        part = "-"
        if task in scale:
            zero, one = scale[task]
            part = f"{(float(np.mean(list(own.values()))) - zero) / (one - zero):.2f}"
        end = _spread(list(endings[task, arm].values()))
        rows.append([task, arm, str(len(own)), mean, part, end])
    head = ["task", "arm", "runs", "mean return over the budget", "of the unit"]
    areas = markdown_table([*head, "in its last tenth"], rows) + "\n"
    if len(grid.seeds) < FEWEST_SEEDS:
        return areas
    scores = in_units(grid, found)
    rows = [
        [arm, other, _told(difference(grid.fresh_tasks, scores, arm, other))]
        for arm, other in product(grid.arms, grid.arms)
        if arm != other
    ]
    head = ["arm", "less arm", "difference in units, all fresh tasks"]
    return f"{areas}\n{markdown_table(head, rows)}\n"


def map_table(rows: list[Row]) -> str:
    """Return the map in Markdown: what the loss is above each other arm, by regime."""
    others = list(dict.fromkeys(arm for row in rows for arm in row.over))
    head = ["regime", "tasks", "seeds", *(f"over {arm}" for arm in others), "times baseline"]
    head += ["over baseline at equal time", ""]
    cells = [
        [
            row.grid.regime,
            ", ".join(row.grid.tasks),
            str(row.n_seeds),
            *(_told(row.over.get(arm)) for arm in others),
            "-" if row.ratio is None else interval_words(row.ratio, ".2f"),
            _told(row.at_equal_time),
            effect(row.over.get(BASELINE), row.over.get(PLACEBO)),
        ]
        for row in rows
    ]
    return markdown_table(head, cells) + "\n"


def tasks_table(rows: list[Row]) -> str:
    """Return in Markdown what the loss does on each task of each regime, and what it costs."""
    cells = []
    for row in rows:
        for task, each in row.on_tasks.items():
            times = "missing" if each.cost is None else f"{each.cost:.2f}"
            name = f"{task}, tuned on" if task in row.grid.tuned_on else task
            cells.append([row.grid.regime, name, *map(_told, each[:3]), times])
    head = ["regime", "task", "over baseline", "over placebo", "over baseline at equal time"]
    return markdown_table([*head, "processor time of baseline's"], cells) + "\n"


def tried_table(grids: Mapping[str, Grid], output: Path) -> str:
    """Return how many forms of the loss some screenings tried, by algorithm and kind of noise."""
    tried: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, grid in grids.items():
        for task, arm in runs_of(grid, output / name):
            settings = grid.arms[arm]
            has_loss = settings.get("extractor", True) and settings.get("infonce_coef", 1.0) > 0
            if has_loss and settings.get("positives") != "shuffled":
                kind = next((word for word in NOISES if word in task), "")
                form = json.dumps([arm, settings], sort_keys=True)
                tried.setdefault((grid.algorithm, NOISES.get(kind, "no noise")), []).append(
                    (form, task)
                )
    rows = []
    for (algorithm, noise), found in sorted(tried.items()):
        n_forms, tasks = len({form for form, _ in found}), sorted({task for _, task in found})
        rows.append([algorithm, noise, str(n_forms), ", ".join(tasks)])
    head = ["algorithm", "beside", "forms of the loss", "tuning tasks"]
    return markdown_table(head, rows) + "\n"


def draw(rows: list[Row], path: Path) -> None:
    """Draw how far each arm is above the baseline, with its interval, one panel for each regime."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    size = 8, 0.6 + 1.3 * len(rows)
    figure, axes = plt.subplots(
        len(rows), 1, figsize=size, layout="constrained", sharex=True, squeeze=False
    )
    for row, panel in zip(rows, axes[:, 0], strict=True):
        shown = [(arm, each) for arm, each in row.differences.items() if each is not None]
        for place, (arm, each) in enumerate(reversed(shown)):
            colour = "C0" if arm == LOSS else "0.45"
            panel.plot([each.low, each.high], [place, place], color=colour, lw=2)
            panel.plot(each.mean, place, "o", color=colour)
        panel.set_yticks(range(len(shown)), [arm.replace("_", " ") for arm, _ in reversed(shown)])
        panel.set_ylim(-0.6, len(shown) - 0.4)
        panel.axvline(0, color="0.7", lw=1, zorder=0)
        panel.set_title(row.grid.regime, fontsize=10, loc="left")
    axes[-1, 0].set_xlabel("score above the same network without the loss, 95 % intervals")
    # the same picture has the same bytes, and its words are text
    with plt.rc_context({"svg.hashsalt": "map", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _spread(values: list[float]) -> str:
    """Return the mean with its 95 % interval, or with the lowest and the highest of few runs."""
    if len(values) >= FEWEST_SEEDS:
        return interval_words(t_interval(values), ".0f")
    return f"{np.mean(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def _told(interval: Interval | None) -> str:
    return "missing" if interval is None else interval_words(interval, "+.3f")
