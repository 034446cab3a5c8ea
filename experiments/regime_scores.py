"""What arms score in a study of regimes, and how far the loss is above the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from regime_grids import N_WINDOWS, Grid, Runs, runs_of
from regime_units import scales

from rl_infonce.report.aggregates import mean
from rl_infonce.report.bootstrap import bootstrap_difference
from rl_infonce.report.statistics import Interval, t_difference

LOSS, BASELINE, PLACEBO = "infonce", "baseline", "placebo"
FEWEST_SEEDS = 5
"""Fewer have no interval, but a lowest and a highest score."""
FloatArray: TypeAlias = npt.NDArray[np.float64]
Scores: TypeAlias = Mapping[tuple[str, str], Mapping[int, float]]
"""Task and arm -> seed -> score."""


def whole(curve: list[float | None]) -> list[float]:
    """Return a curve whose unknown beginning has the first value that is known."""
    known = [each for each in curve if each is not None]
    return [known[0]] * (len(curve) - len(known)) + known


def area(curve: list[float | None]) -> float:
    """Return the mean of a whole curve."""
    return float(np.mean(whole(curve)))


def ending(curve: list[float | None]) -> float:
    """Return the mean of the last tenth of a curve."""
    return area(curve[-(len(curve) // 10) :])


def measured(
    runs: Runs, measure: Callable[[list[float | None]], float] = area
) -> dict[tuple[str, str], dict[int, float]]:
    """Return task and arm -> seed -> what is measured of the curve."""
    return {
        cell: {seed: measure(run["curve"]) for seed, run in own.items()}
        for cell, own in runs.items()
    }


def in_units(grid: Grid, found: Scores) -> Scores:
    """Return task and arm -> seed -> score in the task's unit, of tasks that have one.

    The unit counts as known: what its runs scatter is in no interval.
    """
    scale = scales(grid, found)
    return {
        (task, arm): {
            seed: (each - scale[task][0]) / (scale[task][1] - scale[task][0])
            for seed, each in own.items()
        }
        for (task, arm), own in found.items()
        if task in scale
    }


def paired(
    tasks: Sequence[str], scores: Scores, arm: str, other: str
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return, for each task, the scores of two arms on the seeds that both have.

    Nothing is returned before all tasks have enough of them, or a row would be about some alone.
    """
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for task in tasks:
        first, second = scores.get((task, arm), {}), scores.get((task, other), {})
        seeds = sorted(first.keys() & second.keys())
        if len(seeds) < FEWEST_SEEDS:
            return {}, {}
        ours[task] = [first[seed] for seed in seeds]
        theirs[task] = [second[seed] for seed in seeds]
    return ours, theirs


def difference(tasks: Sequence[str], scores: Scores, arm: str, other: str) -> Interval | None:
    """Return the mean difference over tasks, of runs paired by seed; None without enough runs."""
    ours, theirs = paired(tasks, scores, arm, other)
    return t_difference(ours, theirs) if ours else None


def ratio(ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]]) -> Interval | None:
    """Return how many times the mean score over tasks is that of another arm, with its interval.

    It is a bootstrap over pairs of runs; None where a run of either arm has no score above 0.
    """
    if min(min(values) for values in [*ours.values(), *theirs.values()]) <= 0:
        return None
    rng = np.random.default_rng(0)
    of_logarithms = bootstrap_difference(ours, theirs, lambda s: np.log(mean(s)), rng=rng)
    return Interval(*(float(each) for each in np.exp(of_logarithms)))


def costs_of(runs: Runs, task: str) -> FloatArray:
    """Return [n_seeds] how many times the baseline's processor time the loss takes."""
    ours, theirs = runs.get((task, LOSS), {}), runs.get((task, BASELINE), {})
    ratios = [
        ours[seed]["processor_seconds"] / theirs[seed]["processor_seconds"]
        for seed in sorted(ours.keys() & theirs.keys())
    ]
    return np.array(ratios, dtype=np.float64)


def at_equal_time(grid: Grid, runs: Runs) -> Interval | None:
    """Return how far the loss is above the baseline over the time of the faster one of both.

    What the loss costs is the median over pairs of runs, as other programs ran beside these. It is
    resampled with them, so that the interval holds how uncertain it is.
    """
    if not grid.tasks:  # a setting was chosen on each of them
        return None
    scale = scales(grid, measured(runs))
    ours: dict[str, FloatArray] = {}
    theirs: dict[str, FloatArray] = {}
    for task in grid.tasks:
        costs = costs_of(runs, task)
        if len(costs) < FEWEST_SEEDS or task not in scale:
            return None
        zero, one = scale[task]
        seeds = sorted(runs[task, LOSS].keys() & runs[task, BASELINE].keys())
        for arms, arm, shares in ((ours, LOSS, 1 / costs), (theirs, BASELINE, costs)):
            curves = np.array([whole(runs[task, arm][seed]["curve"]) for seed in seeds])
            arms[task] = np.vstack([(curves.T - zero) / (one - zero), shares])
    rng = np.random.default_rng(0)
    return bootstrap_difference(ours, theirs, cut_area, rng=rng)


def cut_area(scores: Mapping[str, FloatArray]) -> FloatArray:
    """Return the mean over tasks and runs [..., N_WINDOWS + 1, n_runs] of curves that are cut.

    The last row is the share of the windows that each run has time for; their median cuts all.
    """
    areas = []
    for each in scores.values():
        means = each[..., :-1, :].mean(axis=-1).cumsum(axis=-1) / np.arange(1, N_WINDOWS + 1)
        shares = np.median(each[..., -1, :], axis=-1)
        ends = np.clip(np.round(shares * N_WINDOWS).astype(int), 1, N_WINDOWS)
        areas.append(np.take_along_axis(means, ends[..., None] - 1, axis=-1)[..., 0])
    mean_area: FloatArray = np.mean(areas, axis=0)
    return mean_area


class OnTask(NamedTuple):
    """What the loss does on one task, and its processor time over that of the baseline."""

    over_baseline: Interval | None
    over_placebo: Interval | None
    at_equal_time: Interval | None
    cost: float | None


def on_tasks(grid: Grid, runs: Runs) -> dict[str, OnTask]:
    """Return what the loss does on each task alone."""
    scores = in_units(grid, measured(runs))

    def on_task(task: str) -> OnTask:
        costs = costs_of(runs, task)
        return OnTask(
            over_baseline=difference([task], scores, LOSS, BASELINE),
            over_placebo=difference([task], scores, LOSS, PLACEBO),
            at_equal_time=at_equal_time(grid._replace(tasks=(task,)), runs),
            cost=float(np.median(costs)) if len(costs) else None,
        )

    return {task: on_task(task) for task in grid.tasks}


def effect(over_baseline: Interval | None, over_placebo: Interval | None) -> str:
    """Return in a word what the loss does: it helps if it beats baseline and placebo."""
    if over_baseline is None or over_placebo is None:
        return "missing"
    if min(over_baseline.low, over_placebo.low) > 0:
        return "helps"
    return "costs" if over_baseline.high < 0 else "undecided"


class Row(NamedTuple):
    """A regime on the map.

    Attributes:
        grid: What was trained, but for tasks on which a setting was chosen.
        n_seeds: Seeds of the loss and of the baseline on all tasks.
        differences: Arm to what it is above the baseline.
        over: Arm to what the loss is above it.
        ratio: The loss over the baseline.
        at_equal_time: What the loss is above the baseline over equal processor time.
        on_tasks: Task to what the loss does there, also where a setting was chosen.
    """

    grid: Grid
    n_seeds: int
    differences: dict[str, Interval | None]
    over: dict[str, Interval | None]
    ratio: Interval | None
    at_equal_time: Interval | None
    on_tasks: dict[str, OnTask]


def row_of(grid: Grid, output: Path) -> Row:
    """Return what a confirmation with the arms `LOSS` and `BASELINE` found."""
    runs = runs_of(grid, output)
    scores, of_all_tasks = in_units(grid, measured(runs)), on_tasks(grid, runs)
    grid = grid._replace(tasks=grid.fresh_tasks)
    others = [arm for arm in grid.arms if arm != LOSS]
    ours, theirs = paired(grid.tasks, scores, LOSS, BASELINE)
    return Row(
        grid=grid,
        n_seeds=min((len(values) for values in ours.values()), default=0),
        differences={
            arm: difference(grid.tasks, scores, arm, BASELINE)
            for arm in grid.arms
            if arm != BASELINE
        },
        over={arm: difference(grid.tasks, scores, LOSS, arm) for arm in others},
        ratio=ratio(ours, theirs) if ours else None,
        at_equal_time=at_equal_time(grid, runs),
        on_tasks=of_all_tasks,
    )
