"""Small data sets whose answer is known."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_infonce.probing import LabelledObservations, ProbingTask, make_task

N_FRAMES, EPISODE_LENGTH = 1200, 40


def labelled(n_frames: int = N_FRAMES, seed: int = 0) -> LabelledObservations:
    """Return noise images with a position of 12 values, a flag, and a variable that never moves."""
    rng = np.random.default_rng(seed)
    labels = {
        "ball_x": rng.integers(100, 112, n_frames).astype(np.uint8),
        "flag": rng.integers(0, 2, n_frames).astype(np.uint8),
        "lives": np.full(n_frames, 3, np.uint8),
    }
    return LabelledObservations(
        observations=rng.integers(0, 256, (n_frames, 1, 4, 4)).astype(np.uint8),
        labels=labels,
        episode_ids=np.arange(n_frames) // EPISODE_LENGTH,
        categories={"ball_x": ("small_object_localization",), "flag": ("misc",)},
        provenance={"game": "fake"},
    )


def task(seed: int = 0) -> ProbingTask:
    return make_task(labelled(seed=seed), np.random.default_rng(seed))


def one_hot(task: ProbingTask) -> npt.NDArray[np.float32]:
    """Return features that hold every label."""
    columns = [values[:, None] == np.unique(values) for values in task.labels.values()]
    return np.concatenate(columns, axis=1).astype(np.float32)


def partly_right(
    task: ProbingTask, share: float = 1.0, seed: int = 0
) -> dict[str, npt.NDArray[Any]]:
    """Return predictions of the test part of which a share is right."""
    rng = np.random.default_rng(seed)
    return {
        name: np.where(rng.random(len(task.split.test)) < share, values[task.split.test], 100)
        for name, values in task.labels.items()
    }


def uneven_task() -> ProbingTask:
    """Return a task whose most frequent labels take 70 % and 60 % of the frames."""
    data, rng = labelled(4000), np.random.default_rng(5)
    labels = {
        "state": rng.choice(4, 4000, p=[0.7, 0.1, 0.1, 0.1]),
        "flag": rng.choice(2, 4000, p=[0.4, 0.6]),
    }
    return make_task(replace(data, labels=labels, categories={}), rng)
