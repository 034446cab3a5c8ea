"""Curves of arms as SVG: told apart by dashes and labels, not by colour alone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rl_infonce.report.aggregates import mean
from rl_infonce.report.bootstrap import bootstrap_band
from rl_infonce.report.curves import return_curve
from rl_infonce.report.rendering import new_figure
from rl_infonce.report.runs import Run

__all__ = ["curves_svg", "return_curves"]

FloatArray = npt.NDArray[np.float64]

# Okabe and Ito's colours, which the colour-blind tell apart.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)), (0, (3, 3)))
_N_WINDOWS = 40


def return_curves(runs: Sequence[Run]) -> tuple[FloatArray, FloatArray]:
    """Return the steps [W] at which windows of the budget end, and returns [W, n_runs]."""
    n_steps = min(run.n_steps for run in runs)
    curves = [
        return_curve(run.steps, run.returns, n_steps, _N_WINDOWS, n_steps_done=run.n_steps_done)
        for run in runs
    ]
    return np.arange(1, _N_WINDOWS + 1) * n_steps / _N_WINDOWS, np.stack(curves, axis=1)


def curves_svg(
    title: str,
    arms: Mapping[str, tuple[FloatArray, FloatArray]],
    *,
    ylabel: str,
    order: Sequence[str],
    rng: np.random.Generator,
) -> str:
    """Return a chart of the mean over runs, with a 95 % band where there are two or more.

    Args:
        title: Above it.
        arms: Name to steps [P] and values [P, n_runs]; NaN where nothing is known yet.
        ylabel: Of the values.
        order: Of all arms of the report, so that each looks the same in every chart.
        rng: Of the bootstrap.
    """
    figure = new_figure(4.6, 3.2)
    from matplotlib import rc_context

    axes = figure.subplots()
    for arm, (steps, values) in arms.items():
        style = order.index(arm) % len(_COLOURS)
        known = np.isfinite(values).all(axis=1)
        steps, values = steps[known], values[known]
        axes.plot(
            steps, values.mean(axis=1), color=_COLOURS[style], linestyle=_DASHES[style], label=arm
        )
        if values.shape[1] > 1:
            band = bootstrap_band({"": values}, mean, rng=rng, n_resamples=500, widen=True)
            axes.fill_between(steps, band.low, band.high, color=_COLOURS[style], alpha=0.15, lw=0)
    axes.set(title=title, xlabel="agent steps", ylabel=ylabel)
    axes.legend(fontsize="small", handlelength=3.5)
    axes.grid(alpha=0.3)
    text = io.StringIO()
    with rc_context({"svg.hashsalt": title}):  # else names differ from one report to the next
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
