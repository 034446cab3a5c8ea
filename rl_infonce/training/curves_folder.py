"""Choose the folder of a run's TensorBoard curves, which no other run writes to."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_infonce.training.plan import TrainingPlan


def curves_folder(
    plan: TrainingPlan, run_dir: Path, record: Mapping[str, Any], say: Callable[[str], object]
) -> Path:
    """Make and return a run's folder of curves: the one that it went on in, or else a free one.

    Outside of the run it is called as the run is, with a number if another run has that name.
    `say` receives a line about the number.
    """
    name = run_dir.resolve().name
    logs = plan.tensorboard_log
    usual = run_dir / "tb" if logs is None else logs / plan.algo / name
    if logs is None or usual.resolve().is_relative_to(run_dir.resolve()):
        usual.mkdir(parents=True, exist_ok=True)
        return usual
    # A record may be anyone's, and chooses among the names of this run alone.
    legal = re.compile(rf"{re.escape(name)}(_\d+)?")
    for session in reversed(record["sessions"]):
        former = Path(os.path.normpath(run_dir.resolve() / session.get("curves", "")))
        if former.parent == usual.parent.resolve() and legal.fullmatch(former.name):
            folder = usual.parent / former.name
            folder.mkdir(parents=True, exist_ok=True)
            return folder
    numbered = (usual.parent / f"{name}_{n}" for n in itertools.count(2))
    folder = next(filter(_claimed, itertools.chain([usual], numbered)))
    if folder != usual:
        say(f"TensorBoard's curves go to {folder}, as {usual} holds those of another run.")
    return folder


def _claimed(folder: Path) -> bool:
    """Make a folder and return True, or return whether one that is there holds no curves."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return folder.is_dir() and not any(folder.glob("events.out.tfevents.*"))
    return True
