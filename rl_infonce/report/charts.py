"""Curves of arms as SVG: told apart by dashes, markers and labels, not by colour alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.report.aggregates import mean
from rl_infonce.report.bootstrap import bootstrap_band
from rl_infonce.report.curves import return_curve
from rl_infonce.report.rendering import new_figure
from rl_infonce.report.runs import LOGGED, Run, arms_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = npt.NDArray[np.float64]

# Okabe and Ito's colours, which the colour-blind tell apart.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)), (0, (3, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MARKED = 10  # points from one marker to the next
_N_WINDOWS = 40


class Chart(NamedTuple):
    """A chart with words for those who cannot see it; the SVG is empty if there is nothing to show.

    The note says what the chart does not show; it is empty if nothing is left out.
    """

    text: str
    svg: str
    note: str


class Curves(NamedTuple):
    """Curves [W, n_runs] of several runs at the steps [W] where windows of the budget end.

    Values are NaN before the first one of a run; `without` are the runs that have none at all.
    """

    steps: FloatArray
    values: FloatArray
    without: list[Run]


def return_curves(runs: Sequence[Run]) -> Curves:
    """Return the returns of runs over windows of their budget."""
    return _windowed(runs, lambda run: (run.steps, run.returns))


def logged_curves(runs: Sequence[Run], name: str) -> Curves:
    """Return what runs logged under a name, over windows of their budget.

    Algorithms log at different steps, DQN at the ends of episodes; windows make them one axis.
    """
    nothing = np.array([], np.int64), np.array([])
    return _windowed(runs, lambda run: run.curves.get(name, nothing))


def _windowed(
    runs: Sequence[Run], read: Callable[[Run], tuple[npt.NDArray[np.int64], FloatArray]]
) -> Curves:
    n_steps = min(run.n_steps for run in runs)
    n_windows = min(_N_WINDOWS, n_steps)
    columns, without = [], []
    for run in runs:
        steps, values = read(run)
        within = (steps >= 1) & (steps <= n_steps) & np.isfinite(values)
        if within.any():
            done = run.n_steps_done
            own = return_curve(steps[within], values[within], n_steps, n_windows, n_steps_done=done)
            columns.append(own)
        else:
            without.append(run)
    ends = np.arange(1, n_windows + 1) * n_steps / n_windows
    return Curves(ends, np.array(columns).reshape(-1, n_windows).T, without)


def line_style(index: int) -> dict[str, Any]:
    """Return colour, dashes and marker of an arm; two of 64 arms never share dashes and marker."""
    n = len(_COLOURS)
    return {
        "color": _COLOURS[index % n],
        "linestyle": _DASHES[index % n],
        "marker": _MARKERS[(index + index // n) % n],
        "markersize": 4.5,
    }


def curves_svg(
    title: str,
    arms: Mapping[str, tuple[FloatArray, FloatArray]],
    *,
    ylabel: str,
    order: Sequence[str],
    rng: np.random.Generator,
) -> str:
    """Return a chart of the mean over runs; of several runs also each one, thin, and a 95 % band.

    The axis holds the runs: beside the band of a few of them no curve could be told from another.
    `arms` maps a name to steps [P] and values [P, n_runs]; `order` names all arms of the report, so
    that each looks the same in every chart.
    """
    figure = new_figure(4.6, 3.2)
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes = figure.subplots()
    bands = []
    for arm, (steps, values) in arms.items():
        index = order.index(arm)
        style = line_style(index)
        known = np.isfinite(values).all(axis=1)
        steps, values = steps[known], values[known]
        label = arm.replace("$", r"\$")  # which would begin a formula
        # apart where lines meet
        marked = (2 * index % _MARKED, _MARKED) if len(steps) > _MARKED else 1
        axes.plot(steps, values.mean(axis=1), **style, markevery=marked, label=label)
        if values.shape[1] > 1:
            axes.plot(steps, values, color=style["color"], alpha=0.5, lw=0.6)
            band = bootstrap_band({"": values}, mean, rng=rng, n_resamples=500, widen=True)
            bands.append((steps, band, style["color"]))
    axis_of_runs = axes.get_ylim()
    for steps, band, colour in bands:
        axes.fill_between(steps, band.low, band.high, color=colour, alpha=0.15, lw=0)
    axes.set(title=title, xlabel="agent steps", ylabel=ylabel, ylim=axis_of_runs)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(fontsize="small", handlelength=3.5)
    axes.grid(alpha=0.3)
    return svg_of(figure, title)


def svg_of(figure: Figure, name: str) -> str:
    """Return a figure as SVG text, the same for the same figure and name."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": name}):  # else names differ from one report to the next
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def charts_of(runs: Sequence[Run], algo: str, rng: np.random.Generator) -> list[Chart]:
    """Return the charts of an algorithm: returns of every game, then what was logged."""
    own, order = [run for run in runs if run.algo == algo], arms_of(runs)
    kinds: list[tuple[str, Callable[[Sequence[Run]], Curves]]] = [
        ("return", return_curves),
        *((words, partial(logged_curves, name=name)) for name, words in LOGGED.items()),
    ]
    games = sorted({run.game for run in own})
    return [
        _chart(ylabel, game, [run for run in own if run.game == game], read, order, rng)
        for ylabel, read in kinds
        for game in games
    ]


def _chart(
    ylabel: str,
    game: str,
    runs: Sequence[Run],
    read: Callable[[Sequence[Run]], Curves],
    order: Sequence[str],
    rng: np.random.Generator,
) -> Chart:
    """Return a chart of one game; its SVG is empty where no run has such a curve."""
    present = [arm for arm in order if any(run.arm == arm for run in runs)]
    found = {arm: read([run for run in runs if run.arm == arm]) for arm in present}
    arms = {arm: (each.steps, each.values) for arm, each in found.items() if each.values.size}
    without = [text for arm, each in found.items() if (text := _without(arm, each))]
    note = f"Without a curve: {'; '.join(without)}." if without else ""
    ends = [f"{arm} ends at {_last(values)}" for arm, (_, values) in arms.items()]
    text = f"{ylabel} on {game}: {', '.join(ends) or 'no run has such a curve'}"
    svg = curves_svg(game, arms, ylabel=ylabel, order=order, rng=rng) if arms else ""
    return Chart(text, svg, note)


def _last(values: FloatArray) -> str:
    """Return the mean over runs in the last window, where all are known."""
    return f"{values[np.isfinite(values).all(axis=1)][-1].mean():.3g}"


def _without(arm: str, curves: Curves) -> str:
    """Return an arm with its seeds that have no curve; empty if all have one."""
    seeds = ", ".join(str(run.seed) for run in curves.without)
    if not seeds:
        return ""
    return f"{arm} seeds {seeds}" if curves.values.size else f"all of {arm}"
