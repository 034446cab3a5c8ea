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
        n_steps: Gradient steps in all; 0 until the first ones have been timed.
        n_validations: Still to come.
        next_validation: Step after which the next one is due.
        seconds: Wall clock of all sessions, up to this state.
        step_seconds: Of these in gradient steps.
        validation_seconds: Of these in validations.
        best_loss: Lowest validation loss so far.
        best_step: Where that was.
        n_stale: Validations since.
        history: One entry per validation: step, losses, accuracies (None where nothing is picked),
            frames per second of the steps.
    """

    step: int = 0
    n_steps: int = 0
    n_validations: int = 0
    next_validation: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    validation_seconds: float = 0.0
    best_loss: float = float("inf")
    best_step: int = 0
    n_stale: int = 0
    history: list[dict[str, float | None]] = field(default_factory=list)


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
    try:
        _check_settings(path, json.loads(metadata["settings"]), settings)
        progress = Progress(**json.loads(metadata["progress"]))
        objective.load_state_dict(_group(tensors, "objective"))
        _load_moments(optimizer, _group(tensors, "optimizer"), is_started=progress.step > 0)
        best = _group(tensors, "best")
        if best.keys() != objective.encoder.state_dict().keys():
            raise KeyError("best")
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"Expected a whole checkpoint of this run at {path}: {error!r}."
        ) from error
    return progress, best


def _group(tensors: dict[str, Tensor], group: str) -> dict[str, Tensor]:
    start = f"{group}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def _load_moments(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], *, is_started: bool
) -> None:
    """Give each parameter its moments, in the parameter's own layout: fused Adam demands it."""
    (group,) = optimizer.param_groups
    for index, parameter in enumerate(group["params"]):
        found = _group(tensors, str(index))
        if is_started and found.keys() != {"step", "exp_avg", "exp_avg_sq"}:
            raise KeyError(f"optimizer.{index}")
        moments = {}
        for name, tensor in found.items():
            like = tensor if name == "step" else parameter
            if tensor.shape != like.shape:
                raise RuntimeError(f"optimizer.{index}.{name} of shape {tuple(tensor.shape)}")
            moments[name] = torch.empty_like(
                like, dtype=tensor.dtype, device=parameter.device, requires_grad=False
            ).copy_(tensor)
        optimizer.state[parameter] = moments


def _check_settings(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = [key for key in sorted(found | wanted) if found.get(key) != wanted.get(key)]
    if differing:
        listed = "; ".join(f"{k}={found.get(k)!r} (not {wanted.get(k)!r})" for k in differing)
        raise ValueError(
            f"Expected the settings of the run in {path}, which has {listed}. Choose another "
            "folder, or delete this one."
        )
