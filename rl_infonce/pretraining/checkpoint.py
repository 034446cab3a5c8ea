"""A pretraining run as one file: every tensor and the state of the loop, replaced in one move."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_infonce.checks import differences
from rl_infonce.files.json_text import parse_json
from rl_infonce.files.tensor_file import (
    check_same,
    opened_tensors,
    shapes_in,
    shapes_of,
    write_tensors,
)
from rl_infonce.pretraining.base_objective import PretrainingObjective

_FORMAT = "rl_infonce pretraining checkpoint 1"
_NUMBER = (int, float)
# The fields of `Progress` that are no integers.
_KINDS: dict[str, Any] = {
    "seconds": _NUMBER,
    "step_seconds": _NUMBER,
    "validation_seconds": _NUMBER,
    "best_loss": _NUMBER,
    "history": list,
}
_ABOUT = "about."
# The settings that may change when a run goes on: gradients differ by rounding alone.
_FREE = ("micro_batch_size",)


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: Number of gradient steps done.
        n_steps: Number of gradient steps in all; of a budget in seconds an estimate, 0 at first.
        n_validations: Number of validations still to come, at most.
        next_validation: Step after which the next validation is due; 0 where the clock decides.
        seconds: Wall clock of all sessions, up to this state.
        step_seconds: Seconds spent in gradient steps.
        validation_seconds: Seconds spent in validations.
        best_loss: Lowest validation loss so far.
        best_step: Step of the lowest validation loss.
        n_stale: Number of validations since the best one.
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


def settings_of_run(about: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings by name; the caller's begin with "about." where both name one.

    They are as a checkpoint gives them back, where a tuple is a list.
    """
    try:
        told = json.loads(json.dumps(dict(about)))
    except TypeError as error:  # before the run, whose first checkpoint would fail
        raise TypeError(
            f"Expected `about` of values that JSON holds, got {about}: {error}."
        ) from error
    return {f"{_ABOUT}{k}" if k in own else k: value for k, value in told.items()} | dict(own)


def write_checkpoint(
    path: Path,
    objective: PretrainingObjective,
    optimizer: torch.optim.Optimizer,
    best: dict[str, Tensor],
    progress: Progress,
    settings: dict[str, Any],
) -> None:
    """Write everything that the next step depends on; if that fails, the former file is kept."""
    tensors = {f"objective.{name}": tensor for name, tensor in objective.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in state.items()}
    metadata = {
        "format": _FORMAT,
        "progress": json.dumps(asdict(progress)),
        "settings": json.dumps(settings),
    }
    write_tensors(path, tensors, metadata)


def read_checkpoint(
    path: Path,
    objective: PretrainingObjective,
    optimizer: torch.optim.Optimizer,
    settings: dict[str, Any],
) -> tuple[Progress, dict[str, Tensor]]:
    """Put objective and optimizer into the state of a checkpoint; return progress and best encoder.

    A file that is no checkpoint, is damaged or has other settings raises a `ValueError`.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Expected a checkpoint at {path}, got no such file.")
    where = f"the checkpoint of this run at {path}"
    with opened_tensors(path) as file:
        progress = _read_progress(path, file.metadata() or {}, settings)
        like = _tensors_like(objective, optimizer, progress)
        check_same(where, "shape", shapes_of(like), shapes_in(file))
        tensors = {name: file.get_tensor(name) for name in like}
    dtypes, found = ({name: t.dtype for name, t in each.items()} for each in (like, tensors))
    check_same(where, "format", dtypes, found)
    objective.load_state_dict(_group(tensors, "objective"))
    _load_moments(optimizer, _group(tensors, "optimizer"))
    return progress, _group(tensors, "best")


def _read_progress(path: Path, metadata: dict[str, str], settings: dict[str, Any]) -> Progress:
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"Expected {path} in format {_FORMAT!r}, got {metadata.get('format')!r}.")
    try:
        former, found = (
            dict(parse_json(metadata[key], allow_nan=True)) for key in ("settings", "progress")
        )
        progress = Progress(**found)
        for name, value in vars(progress).items():
            if not isinstance(value, _KINDS.get(name, int)) or isinstance(value, bool):
                raise TypeError(f"{name} of type {type(value).__name__}")
        if not all(isinstance(entry, dict) for entry in progress.history):
            raise TypeError("history of something else")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected a whole checkpoint at {path}, got: {error!r}. Delete it to begin anew, or "
            "choose another folder."
        ) from error
    _check_settings(path, former, settings)
    return progress


def _tensors_like(
    objective: PretrainingObjective, optimizer: torch.optim.Optimizer, progress: Progress
) -> dict[str, Tensor]:
    """Return tensors of the names, shapes and formats that a checkpoint of this run holds."""
    groups: dict[str, dict[str, Tensor]] = {
        "objective": objective.state_dict(),
        "best": objective.encoder.state_dict(),
    }
    if progress.step:
        (group,) = optimizer.param_groups
        for index, parameter in enumerate(group["params"]):
            moments = {"step": torch.empty(()), "exp_avg": parameter, "exp_avg_sq": parameter}
            groups[f"optimizer.{index}"] = moments
    return {f"{g}.{name}": tensor for g, each in groups.items() for name, tensor in each.items()}


def _group(tensors: dict[str, Tensor], group: str) -> dict[str, Tensor]:
    start = f"{group}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def _load_moments(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give each parameter its moments, in the parameter's own layout: fused Adam demands it."""
    (group,) = optimizer.param_groups
    for index, parameter in enumerate(group["params"]):
        optimizer.state[parameter] = {
            name: torch.empty_like(
                tensor if name == "step" else parameter,
                dtype=tensor.dtype,
                device=parameter.device,
                requires_grad=False,
            ).copy_(tensor)
            for name, tensor in _group(tensors, str(index)).items()
        }


def _check_settings(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    # Earlier checkpoints do not know their frames.
    unknown = {"frames_checksum"} - found.keys()
    names = sorted((found | wanted).keys() - {*_FREE, *unknown})
    if listed := differences(found, {name: wanted.get(name) for name in names}):
        way_out = "Choose another folder, or delete this one."
        if found.get("precision") != wanted.get("precision"):
            # Where none was asked for, it is the machine's, and the run began on another one.
            way_out = f"Pass --precision {found.get('precision')} to go on. {way_out}"
        raise ValueError(
            f"Expected the settings of the run in {path}, which has {listed}. {way_out}"
        )
