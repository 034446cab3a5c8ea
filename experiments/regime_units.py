"""The unit of a task: a random agent scores 0, and stock without distractors scores 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from regime_grids import Grid

from rl_infonce.files.durable import replace_text

N_RANDOM_EPISODES = 50
RANDOM_RETURNS = Path(__file__).parent / "regimes" / "random_returns.json"


def scales(grid: Grid, found: Mapping[tuple[str, str], Mapping[int, float]]) -> dict[str, Any]:
    """Return task -> (random return, return that counts as 1), the mean of the unit's runs."""
    first = next(iter(grid.arms))
    scale = {}
    for task in grid.tasks:
        unit = found.get((grid.unit.get(task, task), first), {})
        if unit:
            scale[task] = random_return(task), float(np.mean(list(unit.values())))
    return scale


def random_return(task: str) -> float:
    """Return the mean return of a random agent, from its file where the task stands there."""
    known: dict[str, float] = json.loads(RANDOM_RETURNS.read_text(encoding="utf-8"))
    return known[task] if task in known else played_at_random(task)


def played_at_random(task: str) -> float:
    """Return the mean return of episodes of uniform actions, always the same ones."""
    env = gym.make(task)
    env.action_space.seed(0)
    total = 0.0
    for episode in range(N_RANDOM_EPISODES):
        env.reset(seed=episode)
        is_over = False
        while not is_over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, is_over = total + float(reward), terminated or truncated
    return total / N_RANDOM_EPISODES


def note_random_returns(grids: list[Grid]) -> None:
    """Add to the file what a random agent returns on the tasks of some grids."""
    tasks = {task for grid in grids for task in (*grid.tasks, *grid.unit.values())}
    known = json.loads(RANDOM_RETURNS.read_text(encoding="utf-8"))
    known |= {task: played_at_random(task) for task in tasks - set(known)}
    text = json.dumps(known, indent=2, sort_keys=True) + "\n"
    replace_text(RANDOM_RETURNS, text)
