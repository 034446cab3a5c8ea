"""What a probe found, as figures: a table of all variables, and their course over training."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_infonce.report.rendering import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rl_infonce.probing import ProbeScores

Categories = Mapping[str, tuple[str, ...]]

_ROW_INCHES = 0.26
_COLOURS = "Blues"
_MOST_LABELLED_COLUMNS = 12  # of a heat map whose cells still have room for numbers


def grouped_variables(scores: ProbeScores, categories: Categories) -> dict[str, list[str]]:
    """Return category to probed variables, in the order of the scores; without one: "other".

    A variable in two categories is in both groups.
    """
    groups: dict[str, list[str]] = {category: [] for category in scores.categories}
    for variable in scores.variables:
        for category in categories.get(variable) or ("other",):
            groups.setdefault(category, []).append(variable)
    return groups


def probe_table_figure(
    columns: Mapping[str, ProbeScores], categories: Categories, *, title: str = ""
) -> Figure:
    """Return a table of weighted F1: one row per variable, category and mean, one column each.

    The columns are scores of the same task, such as now, untrained and majority; the first decides
    which rows there are.
    """
    first, *_ = scores = list(columns.values())
    rows = _table_rows(scores, grouped_variables(first, categories))
    left_out = _left_out(first)
    height = _ROW_INCHES * (len(rows) + 2 + 0.8 * len(left_out)) + 0.4
    figure = new_figure(3.6 + 1.1 * len(columns), height)
    axes = figure.add_subplot()
    _draw_cells(axes, [values for _, values, _ in rows], labelled=True)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    for label, (_, _, is_heading) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if is_heading else "normal")
        label.set_horizontalalignment("left")
    axes.tick_params(axis="y", pad=190, length=0)
    axes.tick_params(axis="x", length=0)
    figure.suptitle(title, fontsize=11)
    if left_out:
        figure.supxlabel("\n".join(left_out), fontsize=8, x=0.01, ha="left")
    return figure


def _table_rows(
    columns: Sequence[ProbeScores], groups: Mapping[str, Sequence[str]]
) -> list[tuple[str, list[float], bool]]:
    """Return name, values and whether it is a heading of each row of a table."""
    rows = [("mean", [scores.mean.f1_weighted for scores in columns], True)]
    for category, variables in groups.items():
        rows.append((category, [_of(scores.categories, category) for scores in columns], True))
        for name in variables:
            rows.append((f"   {name}", [_of(scores.variables, name) for scores in columns], False))
    return rows


def probe_heat_map(
    history: Sequence[tuple[int, ProbeScores]],
    categories: Categories,
    *,
    untrained: ProbeScores | None = None,
    title: str = "",
) -> Figure:
    """Return weighted F1 of every variable (rows) over training steps (columns), oldest first.

    The untrained encoder has a column of its own on the left.
    """
    latest = history[-1][1]
    groups = _each_once(grouped_variables(latest, categories))
    variables = list(itertools.chain(*groups))
    columns = ([] if untrained is None else [("untrained", untrained)]) + [
        (f"{step:,}", scores) for step, scores in history
    ]
    values = [[_of(scores.variables, v) for _, scores in columns] for v in variables]
    width = 3.2 + max(4.0, min(0.55 * len(columns), 9.0))
    figure = new_figure(width, _ROW_INCHES * len(variables) + 1.2)
    axes = figure.add_subplot()
    image = _draw_cells(axes, values, labelled=len(columns) <= _MOST_LABELLED_COLUMNS)
    stride = int(np.ceil(len(columns) / _MOST_LABELLED_COLUMNS))
    ticks = range(0, len(columns), stride)
    axes.set_xticks(ticks, [columns[tick][0] for tick in ticks], rotation=45, ha="right")
    axes.set_yticks(range(len(variables)), variables)
    axes.set_xlabel("training step")
    axes.set_title(title, fontsize=11, loc="left")
    _separate(axes, [len(members) for members in groups], untrained is not None)
    figure.colorbar(image, ax=axes, label="F1 (weighted)", fraction=0.04, pad=0.02)
    return figure


def _each_once(groups: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return groups without variables that stood in an earlier one."""
    seen: set[str] = set()
    found = []
    for members in groups.values():
        new = [variable for variable in members if variable not in seen]
        found += [new] if new else []
        seen.update(members)
    return found


def _of(scores: Mapping[str, Any], name: str) -> float:
    return float(scores[name].f1_weighted) if name in scores else float("nan")


def _left_out(scores: ProbeScores) -> list[str]:
    """Return one line per reason, naming the variables."""
    by_reason: dict[str, list[str]] = {}
    for variable, reason in scores.not_probed.items():
        by_reason.setdefault(reason.split(",")[0], []).append(variable)
    lines = []
    for reason, names in by_reason.items():
        listed = ", ".join(names)
        listed = listed if len(listed) <= 60 else f"{listed[:57]}..."
        lines.append(f"not probed: {listed} ({reason})")
    return lines


def _draw_cells(axes: Axes, values: list[list[float]], *, labelled: bool) -> Any:
    """Draw a matrix of scores in [0, 1], with numbers if there is room."""
    image = axes.imshow(values, cmap=_COLOURS, vmin=0.0, vmax=1.0, aspect="auto")
    for side in axes.spines.values():
        side.set_visible(False)
    if labelled:
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                text = "-" if np.isnan(value) else f"{value:.2f}"
                colour = "white" if value > 0.6 else "black"
                axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    return image


def _separate(axes: Axes, sizes: Sequence[int], first_column: bool) -> None:
    """Draw white lines between groups of rows, and after the first column."""
    for end in np.cumsum(sizes)[:-1]:
        axes.axhline(end - 0.5, color="white", linewidth=3)
    if first_column:
        axes.axvline(0.5, color="white", linewidth=3)
