"""Estimate what a sweep takes: its time from a short training, its disk from the size of models."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from rl_infonce.resuming.replay_shards import arrays_of
from rl_infonce.sb3.callbacks import decoupled_callback
from rl_infonce.sweeps.commands import plan_of
from rl_infonce.sweeps.grid import Cell
from rl_infonce.training.algorithms import defaults_of
from rl_infonce.training.run_model import close_env, make_model
from rl_infonce.training.training_run import check_updates

_N_UPDATED = 200  # steps with a replay buffer; without one, a whole rollout
# Weights and Adam's two moments, in SB3's zip and in our state, which also holds the environments.
_ZIP, _STATE = 3, 6
T = TypeVar("T")


class Tried(NamedTuple):
    """Seconds that all cells train, how many cells were tried, and why others could not be."""

    seconds: float
    n_tried: int
    failed: list[str]


def disk_of_all(cells: Sequence[Cell], n_timesteps: int, n_running: int) -> int:
    """Return the bytes that cells take at most, while `n_running` of them hold checkpoints."""
    found, problems = _measured(cells, lambda cell: disk_of(cell, n_timesteps))
    if problems:
        reasons = "\n".join(f"  {problem}" for problem in problems)
        raise ValueError(f"Expected arms that can be trained, got:\n{reasons}")
    checkpoints = sorted(found[_kind(cell)][0] for cell in cells)
    return sum(found[_kind(cell)][1] for cell in cells) + sum(checkpoints[-n_running:])


def disk_of(cell: Cell, n_timesteps: int) -> tuple[int, int]:
    """Return the bytes of checkpoints (two, and a third while it is written) and of models.

    Raise, as the training would, if the cell's settings do not go with its environment.
    """
    model = _model(cell, n_timesteps, device="cpu")  # its own device may be another machine's
    policy = model.policy  # its state dict would count a shared extractor three times
    weights = sum(each.nbytes for each in (*policy.parameters(), *policy.buffers()))
    replay = getattr(model, "replay_buffer", None)
    rows = 0 if replay is None else sum(int(each.nbytes) for _, each in arrays_of(replay))
    close_env(model.get_env())
    check_updates(cell.settings, model)
    return 3 * (_ZIP + _STATE) * weights + 2 * rows, 2 * _ZIP * weights  # the last and the best


def seconds_of_all(cells: Sequence[Cell], n_timesteps: int, n_threads: int) -> Tried:
    """Return how long cells train one after the other, with so many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        found, failed = _measured(cells, lambda cell: seconds_of(cell, n_timesteps))
    finally:
        torch.set_num_threads(before)
    return Tried(sum(found.get(_kind(cell), 0.0) for cell in cells), len(found), failed)


def seconds_of(cell: Cell, n_timesteps: int) -> float:
    """Return how long a cell trains in this process, from training it for a moment."""
    settings = cell.settings
    has_replay = "learning_starts" in defaults_of(cell.algo)
    own, n_steps = ({"learning_starts": 100}, _N_UPDATED) if has_replay else ({}, 1)
    model = _model(cell, n_timesteps, device=settings.get("device", "auto"), **own)
    callback = decoupled_callback(settings)
    model.learn(n_steps, callback)  # the first update is slower than those to come
    first, start = model.num_timesteps, time.perf_counter()
    model.learn(n_steps, callback, reset_num_timesteps=False)
    seconds = time.perf_counter() - start
    n_trained: int = model.num_timesteps - first
    close_env(model.get_env())
    return seconds / n_trained * n_timesteps


def _measured(
    cells: Sequence[Cell], measure: Callable[[Cell], T]
) -> tuple[dict[tuple[str, str, str], T], list[str]]:
    """Measure one cell of each kind; return what was found and what failed."""
    found, failed = {}, []
    for kind, cell in {_kind(cell): cell for cell in cells}.items():
        try:
            found[kind] = measure(cell)
        except Exception as error:  # noqa: BLE001 (SB3 lets values through that fail anywhere)
            where = f"Arm {cell.arm!r} with {cell.algo} on {cell.game}"
            failed.append(f"{where}: {type(error).__name__}: {error}")
    return found, failed


def _kind(cell: Cell) -> tuple[str, str, str]:
    """Return what decides time and size: arms may differ in name alone, as trials do."""
    return "" if cell.is_atari else cell.game, cell.algo, json.dumps(cell.settings)


def _model(cell: Cell, n_timesteps: int, *, device: str, **changes: Any) -> Any:
    """Return a cell's model on a device, with other hyperparameters than its own."""
    hyperparameters = {**cell.settings.get("hyperparameters", {}), **changes}
    settings = {**cell.settings, "device": device, "hyperparameters": hyperparameters}
    plan = plan_of(replace(cell, settings=settings), n_timesteps)
    return make_model(plan, plan.pretrained, n_timesteps)


def free_bytes(folder: Path) -> int:
    """Return the room on the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
