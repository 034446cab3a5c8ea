"""The model whose episodes returned most, kept beside the checkpoints."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from rl_infonce.runs.checkpoints import (
    Checkpoint,
    DamagedCheckpointError,
    checkpoints,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from rl_infonce.runs.software import software

_FOLDER, _FILE = "best", "model.zip"


@dataclass(frozen=True)
class BestModel:
    """A model in SB3's zip format, its step, and the mean return of the last episodes before it."""

    path: Path
    step: int
    mean_return: float


def mean_return(model: BaseAlgorithm) -> float | None:
    """Return SB3's `rollout/ep_rew_mean`, or None until its window of episodes is full.

    A mean over a few episodes could be the best by luck.
    """
    episodes = model.ep_info_buffer
    if not episodes or len(episodes) < (episodes.maxlen or 1):
        return None
    mean = float(np.mean([info["r"] for info in episodes]))
    return mean if math.isfinite(mean) else None


def find_best(folder: Path) -> BestModel | None:
    """Return the best model beside a run's checkpoints, or None if no undamaged one is there."""
    found = [
        BestModel(each.path / _FILE, each.step, each.about["mean_return"])
        for each in _whole_ones(folder / _FOLDER)
    ]
    return max(found, key=lambda each: each.mean_return, default=None)


def _whole_ones(folder: Path) -> Iterator[Checkpoint]:
    for path in checkpoints(folder):
        with contextlib.suppress(DamagedCheckpointError):
            checkpoint = read_checkpoint(path)
            if isinstance(checkpoint.about.get("mean_return"), float):
                yield checkpoint


def keep_best(folder: Path, model: BaseAlgorithm, zipped: Callable[[], bytes]) -> bool:
    """Save a model if its episodes returned more than the best's, and return whether they did.

    `zipped` returns the model in SB3's zip format. A failed write leaves the best so far as it
    is.
    """
    score = mean_return(model)
    if score is None:
        return False
    best = find_best(folder)
    if best is not None and score <= best.mean_return:
        return False
    about = {**software(), "mean_return": score}
    path = write_checkpoint(folder / _FOLDER, model.num_timesteps, {_FILE: zipped()}, about)
    prune_checkpoints(folder / _FOLDER, 1, newest=path)
    return True
