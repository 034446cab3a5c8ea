"""A pretraining run as one file: every tensor and the state of the loop, replaced in one move."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rl_infonce.pretraining.objective import PretrainingObjective

__all__ = ["Progress", "read_checkpoint", "write_checkpoint"]

_FORMAT = "rl_infonce pretraining checkpoint 1"


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: Gradient steps done.
        n_steps: Gradient steps in all; 0 until a budget in seconds has been turned into steps.
        seconds: Wall clock of all sessions, up to this state.
        best_loss: Lowest validation loss so far.
        best_step: Where that was.
        n_stale: Validations since.
        history: One entry per validation: step, losses, accuracies, frames per second.
    """

    step: int = 0
    n_steps: int = 0
    seconds: float = 0.0
    best_loss: float = float("inf")
    best_step: int = 0
    n_stale: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def write_checkpoint(
    path: Path,
    objective: PretrainingObjective,
    optimizer: torch.optim.Optimizer,
    best: dict[str, Tensor],
    progress: Progress,
    settings: dict[str, Any],
) -> None:
    """Write everything that the next step depends on.

    Raises:
        OSError: If the file cannot be written; the one before it is kept.
    """
    tensors = {f"objective.{name}": tensor for name, tensor in objective.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in state.items()}
    metadata = {
        "format": _FORMAT,
        "progress": json.dumps(asdict(progress)),
        "settings": json.dumps(settings),
    }
    partial = path.with_suffix(".partial")
    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(owned, partial, metadata=metadata)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_checkpoint(
    path: Path,
    objective: PretrainingObjective,
    optimizer: torch.optim.Optimizer,
    settings: dict[str, Any],
) -> tuple[Progress, dict[str, Tensor]]:
    """Put objective and optimizer into the state of a checkpoint; return progress and best encoder.

    Raises:
        ValueError: If the file is no checkpoint, is damaged, or of other settings.
        OSError: If it cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise ValueError(f"Expected a checkpoint at {path}, got: {error}.") from error
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"Expected {path} in format {_FORMAT!r}, got {metadata.get('format')!r}.")
    _check_settings(path, json.loads(metadata["settings"]), settings)
    groups: dict[str, dict[str, Tensor]] = {"objective": {}, "best": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        groups[group][rest] = tensor
    objective.load_state_dict(groups["objective"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in groups["optimizer"].items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return Progress(**json.loads(metadata["progress"])), groups["best"]


def _check_settings(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = [key for key in sorted(found | wanted) if found.get(key) != wanted.get(key)]
    if differing:
        listed = "; ".join(f"{k}={found.get(k)!r} (not {wanted.get(k)!r})" for k in differing)
        raise ValueError(
            f"Expected the settings of the run in {path}, which has {listed}. Choose another "
            "folder, or delete this one."
        )
