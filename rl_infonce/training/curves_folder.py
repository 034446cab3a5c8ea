"""Name the folder of a run's TensorBoard curves, which no other run writes to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_infonce.files.digests import sha256_of
from rl_infonce.training.plan import TrainingPlan

# Several runs may start in one second.
_OF_ITS_BEGINNING = ("start_time", "command", "arguments_sha256", "seed")


def curves_folder(plan: TrainingPlan, run_dir: Path, record: Mapping[str, Any]) -> Path:
    """Make and return the folder of a run's curves.

    Outside of the run it has the run's name, which others may have, and digits of what its record
    says of its beginning: a run that goes on finds its own, also when both were moved.
    """
    folder = run_dir / "tb"
    if plan.tensorboard_log is not None:
        folder = plan.tensorboard_log / plan.algo / run_dir.resolve().name
        if not folder.resolve().is_relative_to(run_dir.resolve()):
            # Digits alone: a record may be anyone's.
            began = json.dumps([record.get(key) for key in _OF_ITS_BEGINNING])
            folder = folder.with_name(f"{folder.name}_{sha256_of(began.encode())[:8]}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
