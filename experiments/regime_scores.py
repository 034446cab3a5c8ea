"""What arms score in a study of regimes, and how far the loss is above the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from regime_grids import N_WINDOWS, Grid, Runs, runs_of
from regime_units import scales

from rl_infonce.report.aggregates import mean
from rl_infonce.report.bootstrap import bootstrap_difference
from rl_infonce.report.statistics import Interval, scipy_stats, t_difference

LOSS, BASELINE, PLACEBO = "infonce", "baseline", "placebo"
FEWEST_SEEDS = 5
"""Fewer have no interval, but a lowest and a highest score."""
N_RESAMPLES = 2000
FloatArray = npt.NDArray[np.float64]


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
    """Return, for each task, the scores of two arms on the seeds that both have.

    Nothing is returned before all tasks have enough of them, or a row would be about some alone.
    """
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for task in grid.tasks:
        first, second = found.get((task, arm), {}), found.get((task, other), {})
        seeds = sorted({*first} & {*second})
        if len(seeds) >= FEWEST_SEEDS and task in scale:
            zero, one = scale[task]
            ours[task] = [(first[seed] - zero) / (one - zero) for seed in seeds]
            theirs[task] = [(second[seed] - zero) / (one - zero) for seed in seeds]
    return (ours, theirs) if len(ours) == len(grid.tasks) else ({}, {})


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


class Pairs(NamedTuple):
    """The loss and the baseline on one task, at the seeds that both have.

    Attributes:
        ours, theirs: [n_seeds, N_WINDOWS] curves; an unknown beginning has the first known value.
        costs: [n_seeds] processor time of the loss over that of the baseline.
    """

    ours: FloatArray
    theirs: FloatArray
    costs: FloatArray


def pairs_of(runs: Runs, task: str) -> Pairs:
    """Return the curves of the loss and the baseline on a task, and what the loss costs."""
    ours, theirs = runs.get((task, LOSS), {}), runs.get((task, BASELINE), {})
    seeds = sorted(ours.keys() & theirs.keys())

    def curves(runs: Mapping[int, Mapping[str, Any]]) -> FloatArray:
        known = (next(each for each in runs[seed]["curve"] if each is not None) for seed in seeds)
        filled = [
            [first if each is None else each for each in runs[seed]["curve"]]
            for seed, first in zip(seeds, known, strict=True)
        ]
        return np.array(filled, dtype=np.float64).reshape(len(seeds), N_WINDOWS)

    seconds = [[each[seed]["processor_seconds"] for seed in seeds] for each in (ours, theirs)]
    return Pairs(curves(ours), curves(theirs), np.divide(*np.array(seconds, dtype=np.float64)))


def gained(pairs: Pairs) -> float:
    """Return how far the loss is above the baseline over the time of the faster one of both.

    What the loss costs is the median over pairs, as other programs ran beside these.
    """
    times = float(np.median(pairs.costs))
    within = (max(1, round(min(1.0, share) * N_WINDOWS)) for share in (1 / times, times))
    ours, theirs = (
        float(curves[:, :end].mean()) for curves, end in zip(pairs[:2], within, strict=True)
    )
    return ours - theirs


def at_equal_time(grid: Grid, runs: Runs) -> Interval | None:
    """Return what `gained` says, in units and as a mean over tasks; None without enough runs.

    The interval is a bootstrap over pairs of runs, each of whose resamples has a cost of its own.
    It is widened as a mean of so few runs would be (`rl_infonce.report.bootstrap`).
    """
    scale, rng = scales(grid, measured(runs)), np.random.default_rng(0)
    gains, n_fewest = np.zeros(1 + N_RESAMPLES), N_RESAMPLES
    for task in grid.tasks:
        pairs = pairs_of(runs, task)
        n_fewest = min(n_fewest, len(pairs.costs))
        if n_fewest < FEWEST_SEEDS or task not in scale:
            return None
        draws = rng.integers(len(pairs.costs), size=(N_RESAMPLES, len(pairs.costs)))
        each = [gained(pairs), *(gained(Pairs(*(part[own] for part in pairs))) for own in draws)]
        zero, one = scale[task]
        gains += np.array(each) / (one - zero) / len(grid.tasks)
    value, (low, high) = float(gains[0]), np.quantile(gains[1:], [0.025, 0.975])
    stats = scipy_stats()
    widening = (n_fewest / (n_fewest - 1)) ** 0.5
    widening *= stats.t.ppf(0.975, n_fewest - 1) / stats.norm.ppf(0.975)
    return Interval(value, value + widening * (low - value), value + widening * (high - value))


class OnTask(NamedTuple):
    """What the loss does on one task, and its processor time over that of the baseline."""

    over_baseline: Interval | None
    over_placebo: Interval | None
    at_equal_time: Interval | None
    cost: float | None


def on_tasks(grid: Grid, runs: Runs) -> dict[str, OnTask]:
    """Return what the loss does on each task alone."""
    found = measured(runs)
    scale = scales(grid, found)

    def on_task(task: str) -> OnTask:
        alone = grid._replace(tasks=(task,))
        costs = pairs_of(runs, task).costs
        return OnTask(
            over_baseline=difference(alone, found, scale, LOSS, BASELINE),
            over_placebo=difference(alone, found, scale, LOSS, PLACEBO),
            at_equal_time=at_equal_time(alone, runs),
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
    found = measured(runs)
    scale = scales(grid, found)
    of_all_tasks = on_tasks(grid, runs)
    grid = grid._replace(tasks=tuple(each for each in grid.tasks if each not in grid.tuned_on))
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
        on_tasks=of_all_tasks,
    )
