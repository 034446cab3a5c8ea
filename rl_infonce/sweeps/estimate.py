"""What a sweep will take: time, from a short training, and disk, from the size of the model."""

from __future__ import annotations

import contextlib
import inspect
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rl_infonce.agents.pretrained import pixel_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.sb3.callbacks import decoupled_callback
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.sweeps.grid import Cell
from rl_infonce.training.atari_model import make_atari_model
from rl_infonce.training.rl_zoo import N_ENVS

_N_STEPS = {"ppo": 1, "dqn": 200}  # PPO's are those of a whole rollout
# Weights and Adam's two moments, in SB3's zip and in our state, which holds the environments, too.
_ZIP, _STATE = 3, 6


class Disk(NamedTuple):
    """What one cell takes of the disk, in bytes, at most.

    Attributes:
        while_running: With its checkpoints.
        when_done: Without.
    """

    while_running: int
    when_done: int


class Tried(NamedTuple):
    """How long cells train, as far as they could be tried.

    Attributes:
        seconds: Of all together.
        n_tried: Cells that were.
        failed: Why others could not be, as with a GPU that another machine has.
    """

    seconds: float
    n_tried: int
    failed: list[str]


def disk_of(cell: Cell, n_timesteps: int) -> Disk:
    """Return what a cell takes: two checkpoints and a third while it is written, and models."""
    model = _model(cell, n_timesteps, device="cpu")  # that of its own may be another machine's
    policy = model.policy  # whose state dict has shared extractors three times
    weights = sum(each.nbytes for each in (*policy.parameters(), *policy.buffers()))
    replay = getattr(getattr(model, "replay_buffer", None), "__dict__", {})
    rows = sum(int(getattr(each, "nbytes", 0)) for each in replay.values())
    model.get_env().close()
    models = 2 * _ZIP * weights  # the last and the best
    return Disk(3 * (_ZIP + _STATE) * weights + models + 2 * rows, models)


def disk_of_all(cells: Sequence[Cell], n_timesteps: int, n_running: int) -> int:
    """Return the bytes that cells take at most.

    Args:
        cells: One of each algorithm and settings is measured.
        n_timesteps: Of each.
        n_running: Cells with checkpoints beside one another.

    Raises:
        ValueError: If arms cannot be trained; all are named.
    """
    found, problems = {}, []
    for kind, cell in _one_of_each(cells).items():
        try:
            found[kind] = disk_of(cell, n_timesteps)
        except Exception as error:  # noqa: BLE001 (SB3 lets values through that fail anywhere)
            problems.append(_said(cell, error))
    if problems:
        reasons = "\n".join(f"  {problem}" for problem in problems)
        raise ValueError(f"Expected arms that can be trained, got:\n{reasons}")
    each = [found[_kind(cell)] for cell in cells]
    checkpoints = sorted(disk.while_running - disk.when_done for disk in each)
    return sum(disk.when_done for disk in each) + sum(checkpoints[-n_running:])


def _one_of_each(cells: Sequence[Cell]) -> dict[tuple[str, str], Cell]:
    return {_kind(cell): cell for cell in cells}


def _said(cell: Cell, error: Exception) -> str:
    where = f"Arm {cell.arm!r} with {cell.algo} on {cell.game}"
    return f"{where}: {type(error).__name__}: {error}"


def _kind(cell: Cell) -> tuple[str, str]:
    return cell.algo, json.dumps(cell.settings)  # arms may differ in name alone, as trials do


def seconds_of(cell: Cell, n_timesteps: int) -> float:
    """Return how long a cell trains in this process, from training it for a moment.

    Args:
        cell: Whose settings are tried.
        n_timesteps: Of the whole training.
    """
    model = _model(
        cell, n_timesteps, device=cell.settings.get("device", "auto"), learning_starts=100
    )
    settings = cell.settings
    callback = decoupled_callback(
        settings.get("decoupled"), settings.get("decoupled_learning_rate")
    )
    model.learn(_N_STEPS[cell.algo], callback)  # the first update is slower than those to come
    first, start = model.num_timesteps, time.perf_counter()
    model.learn(_N_STEPS[cell.algo], callback, reset_num_timesteps=False)
    seconds = time.perf_counter() - start
    n_steps: int = model.num_timesteps - first
    model.get_env().close()
    return seconds / n_steps * n_timesteps


def seconds_of_all(cells: Sequence[Cell], n_timesteps: int, n_threads: int) -> Tried:
    """Return how long cells train one after the other.

    Args:
        cells: One of each algorithm and settings is tried.
        n_timesteps: Of each.
        n_threads: Of torch, while they are tried.
    """
    before, found, failed = torch.get_num_threads(), {}, []
    torch.set_num_threads(n_threads)
    try:
        for kind, cell in _one_of_each(cells).items():
            try:
                found[kind] = seconds_of(cell, n_timesteps)
            except Exception as error:  # noqa: BLE001 (the others are to be tried)
                failed.append(_said(cell, error))
    finally:
        torch.set_num_threads(before)
    return Tried(sum(found.get(_kind(cell), 0.0) for cell in cells), len(found), failed)


def _model(cell: Cell, n_timesteps: int, *, device: str, **changes: Any) -> Any:
    settings = cell.settings
    own = changes if cell.algo == "dqn" else {}
    of_extractor = inspect.signature(InfoNCEExtractor).parameters.keys()
    return make_atari_model(
        cell.algo,
        cell.game,
        n_timesteps=n_timesteps,
        n_envs=settings.get("n_envs", N_ENVS[cell.algo]),
        seed=cell.seed,
        device=device,
        extractor={name: settings[name] for name in settings if name in of_extractor},
        encoder=_encoder(settings),
        freeze=settings.get("freeze_encoder", False),
        hyperparameters={**settings.get("hyperparameters", {}), **own},
    )


def _encoder(settings: Mapping[str, Any]) -> PixelEncoder | None:
    """Return what a cell starts from; where it cannot be read, its own cell will say so."""
    with contextlib.suppress(ValueError, TypeError, OSError):
        return pixel_encoder(settings["pretrained"]) if "pretrained" in settings else None
    return None


def free_bytes(folder: Path) -> int:
    """Return the room on the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
