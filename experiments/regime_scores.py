"""What arms score in a study of regimes, and how far the loss is above the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from regime_grids import N_WINDOWS, Grid, Runs, runs_of
from regime_units import scales

from rl_infonce.report.aggregates import mean
from rl_infonce.report.bootstrap import bootstrap_difference
from rl_infonce.report.statistics import Interval, t_difference

LOSS, BASELINE, PLACEBO = "infonce", "baseline", "placebo"
FEWEST_SEEDS = 5
"""Fewer have no interval, but a lowest and a highest score."""


def area(curve: list[float | None]) -> float:
    """Return the mean of a curve whose unknown beginning has the first value that is known."""
    known = [each for each in curve if each is not None]
    return float(np.mean([known[0]] * (len(curve) - len(known)) + known))


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


def paired(
    grid: Grid,
    found: Mapping[tuple[str, str], Mapping[int, float]],
    scale: Mapping[str, tuple[float, float]],
    arm: str,
    other: str,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return, for each task, the scores of two arms on the seeds that both have."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for task in grid.tasks:
        first, second = found.get((task, arm), {}), found.get((task, other), {})
        seeds = sorted({*first} & {*second})
        if len(seeds) >= FEWEST_SEEDS and task in scale:
            zero, one = scale[task]
            ours[task] = [(first[seed] - zero) / (one - zero) for seed in seeds]
            theirs[task] = [(second[seed] - zero) / (one - zero) for seed in seeds]
    return ours, theirs


def difference(
    grid: Grid,
    found: Mapping[tuple[str, str], Mapping[int, float]],
    scale: Mapping[str, tuple[float, float]],
    arm: str,
    other: str,
) -> Interval | None:
    """Return the mean difference over tasks, of runs paired by seed; None without enough runs.

    The unit counts as known: what its runs scatter is in no interval.
    """
    ours, theirs = paired(grid, found, scale, arm, other)
    return t_difference(ours, theirs, paired=True) if ours else None


def ratio(ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]]) -> Interval | None:
    """Return how many times the mean score over tasks is that of another arm, with its interval.

    It is a bootstrap over pairs of runs; None where a run of either arm has a score below 0.
    """
    if min(min(values) for values in [*ours.values(), *theirs.values()]) <= 0:
        return None
    rng = np.random.default_rng(0)
    of_logarithms = bootstrap_difference(
        ours, theirs, lambda scores: np.log(mean(scores)), paired=True, rng=rng, widen=True
    )
    value, low, high = np.exp(of_logarithms[:3])
    return Interval(float(value), float(low), float(high))


def cost(runs: Runs, task: str) -> float | None:
    """Return how many times the baseline's processor time the loss takes; None without runs.

    It is the median over pairs of a seed, as other programs ran beside these.
    """
    ours, theirs = runs.get((task, LOSS), {}), runs.get((task, BASELINE), {})
    ratios = [
        ours[seed]["processor_seconds"] / theirs[seed]["processor_seconds"]
        for seed in ours.keys() & theirs.keys()
    ]
    return float(np.median(ratios)) if ratios else None


def at_equal_time(grid: Grid, runs: Runs) -> Interval | None:
    """Return how far the loss is above the baseline over the time of the faster one of both."""
    found = measured(runs)
    scale = scales(grid, found)
    for task in grid.tasks:
        times = cost(runs, task)
        if times is not None:
            slower, share = (LOSS, 1 / times) if times > 1 else (BASELINE, times)
            within = max(1, round(share * N_WINDOWS))
            own = runs[task, slower]
            found[task, slower] = {seed: area(own[seed]["curve"][:within]) for seed in own}
    return difference(grid, found, scale, LOSS, BASELINE)


class OnTask(NamedTuple):
    """What the loss does on one task, and its processor time over that of the baseline."""

    over_baseline: Interval | None
    over_placebo: Interval | None
    cost: float | None


def on_tasks(grid: Grid, runs: Runs) -> dict[str, OnTask]:
    """Return what the loss does on each task alone."""
    found = measured(runs)
    scale = scales(grid, found)

    def over(task: str, arm: str) -> Interval | None:
        return difference(grid._replace(tasks=(task,)), found, scale, LOSS, arm)

    return {
        task: OnTask(over(task, BASELINE), over(task, PLACEBO), cost(runs, task))
        for task in grid.tasks
    }


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
        grid: What was trained.
        n_seeds: Seeds of the loss and of the baseline on all tasks.
        differences: Arm to what it is above the baseline.
        over: Arm to what the loss is above it.
        ratio: The loss over the baseline.
        at_equal_time: What the loss is above the baseline over equal processor time.
        on_tasks: Task to what the loss does there.
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
    found = measured(runs)
    scale = scales(grid, found)
    others = [arm for arm in grid.arms if arm != LOSS]
    ours, theirs = paired(grid, found, scale, LOSS, BASELINE)
    return Row(
        grid=grid,
        n_seeds=min((len(values) for values in ours.values()), default=0),
        differences={
            arm: difference(grid, found, scale, arm, BASELINE)
            for arm in grid.arms
            if arm != BASELINE
        },
        over={arm: difference(grid, found, scale, LOSS, arm) for arm in others},
        ratio=ratio(ours, theirs) if ours else None,
        at_equal_time=at_equal_time(grid, runs),
        on_tasks=on_tasks(grid, runs),
    )
