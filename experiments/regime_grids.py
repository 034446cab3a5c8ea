"""What a study of regimes trains, and what is there of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import control_pixels  # noqa: F401 (registers its ids)
import distractors  # noqa: F401 (registers its ids)

from rl_infonce.settings import InfoNCESettings, defaults

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

N_WINDOWS = 100
"""Points of a curve, each the mean return over its share of the budget."""
Runs: TypeAlias = dict[tuple[str, str], dict[int, dict[str, Any]]]
"""Task and arm -> seed -> what was written of the run."""


class Grid(NamedTuple):
    """What is trained.

    Attributes:
        algorithm: Name of its class, in Stable-Baselines3 or sb3-contrib.
        policy: Name of its policy's class: "MlpPolicy" for vectors, "CnnPolicy" for images.
        n_timesteps: Budget of a run.
        n_envs: Environments at once.
        normalize: Whether `VecNormalize` stands between environments and agent.
        tasks: Ids.
        seeds: Seeds of every task and arm.
        hyperparameters: Arguments of the algorithm.
        arms: Name to arguments of the extractor, or to `extractor = false`.
        unit: Task to the id without distractors, whose first arm has a score of 1.
        tuned_on: Tasks on which a setting of the default was chosen: they confirm nothing.
        regime: What the grid is about, in words for the map.
    """

    algorithm: str
    policy: str
    n_timesteps: int
    n_envs: int
    normalize: bool
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    hyperparameters: dict[str, Any]
    arms: dict[str, dict[str, Any]]
    unit: dict[str, str]
    tuned_on: tuple[str, ...]
    regime: str

    @property
    def fresh_tasks(self) -> tuple[str, ...]:
        """Tasks on which nothing was chosen."""
        return tuple(task for task in self.tasks if task not in self.tuned_on)


def read_grid(path: Path) -> Grid:
    """Return the grid of a file."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {*Grid._fields, "arm"} - {"arms"}
    if unknown := sorted(found.keys() - known):
        raise ValueError(f"Expected the keys {sorted(known)} in {path}, got also {unknown}.")
    return Grid(
        algorithm=found["algorithm"],
        policy=found.get("policy", "MlpPolicy"),
        n_timesteps=found["n_timesteps"],
        n_envs=found.get("n_envs", 1),
        normalize=found.get("normalize", False),
        tasks=tuple(found["tasks"]),
        seeds=tuple(found["seeds"]),
        hyperparameters=found.get("hyperparameters", {}),
        arms=found["arm"],
        unit=found.get("unit", {}),
        tuned_on=tuple(found.get("tuned_on", ())),
        regime=found.get("regime", path.stem),
    )


def cells(grid: Grid) -> list[tuple[int, str, str]]:
    """Return seed, task and arm of every run: all arms of a seed before the next seed."""
    planned = list(product(grid.seeds, grid.tasks, grid.arms))
    first = next(iter(grid.arms))
    units = [
        (seed, task, first) for seed in grid.seeds for task in dict.fromkeys(grid.unit.values())
    ]
    return planned + [each for each in units if each not in planned]


def runs_of(grid: Grid, output: Path) -> Runs:
    """Return task and arm -> seed -> what was written of the run."""
    found: Runs = {}
    for seed, task, arm in cells(grid):
        path = output / f"{task}-{arm}-{seed}.json"
        if not path.exists():
            continue
        run = json.loads(path.read_text(encoding="utf-8"))
        if run["n_steps"] != grid.n_timesteps or run["settings"] != grid.arms[arm]:
            raise ValueError(f"Expected {path} to be of this grid, got other steps or settings.")
        of_cell = found.setdefault((task, arm), {})
        losses = [each["loss"] for each in [*of_cell.values(), run] if "loss" in each]
        if any(not _are_equal(loss, losses[0]) for loss in losses):
            raise ValueError(f"Expected {path} to have the loss of the other seeds, got another.")
        of_cell[seed] = run
    return found


def _are_equal(loss: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two runs had one loss; a setting that a run does not name had its default.

    Former settings, which one of them names alone, do not count.
    """
    usual = json.loads(json.dumps(defaults(InfoNCESettings)))
    names = usual.keys() | (loss.keys() & other.keys())
    return all(
        loss.get(name, usual.get(name)) == other.get(name, usual.get(name)) for name in names
    )
