"""Scores of many runs: on which scale they are, and what they must look like."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_number, check_shape

FloatArray = npt.NDArray[np.float64]
Scores = Mapping[str, npt.ArrayLike]
Scales = Mapping[str, tuple[float, float]]
"""Task to the scores that become 0 and 1."""


def normalized(scores: Scores, scales: Scales) -> dict[str, FloatArray]:
    """Return scores on a scale where a random agent has 0 and the reference, e.g. a human, 1.

    (score - random) / (reference - random) of each task (Mnih et al. 2015, "Human-level control
    through deep reinforcement learning"), there in percent. `scales` maps a task to the scores of a
    random agent and of the reference, which is above it; it may hold other tasks also.
    """
    found = {}
    for task, values in checked_scores("scores", scores).items():
        if task not in scales:
            raise ValueError(f"Expected `scales` to hold {task!r}, got {sorted(scales)}.")
        random, reference = scales[task]
        check_number(f"scales[{task!r}][0]", random)
        check_number(f"scales[{task!r}][1]", reference, above=random)
        found[task] = (values - random) / (reference - random)
    return found


def paired_differences(x: Scores, y: Scores) -> dict[str, FloatArray]:
    """Return x - y of the runs with the same seed: task to [..., n_runs].

    Run i of x and run i of y have the same seed.
    """
    ours, theirs = checked_scores("x", x), checked_scores("y", y)
    check_same_tasks(ours, theirs)
    for task, values in ours.items():
        if values.shape != theirs[task].shape:
            raise ValueError(
                f"Expected paired `x` and `y` with the same runs of {task!r}, got shapes "
                f"{values.shape} and {theirs[task].shape}. Keep the seeds that both have."
            )
    return {task: values - theirs[task] for task, values in ours.items()}


def checked_scores(name: str, scores: Scores, at_least: int = 1) -> dict[str, FloatArray]:
    """Return scores [..., n_runs] of each task as arrays; errors call them `name`."""
    if not isinstance(scores, Mapping):
        raise TypeError(
            f"Expected `{name}` to map tasks to scores, got {type(scores).__name__}. Pass "
            f"{name}={{'task': ...}}, also for a single task."
        )
    if not scores:
        raise ValueError(f"Expected `{name}` to hold at least one task, got none.")
    arrays = {task: _numbers(f"{name}[{task!r}]", values) for task, values in scores.items()}
    leading = next(iter(arrays.values())).shape[:-1]
    for task, values in arrays.items():
        check_shape(f"{name}[{task!r}]", values, [*leading, "n_runs"])
        if values.shape[-1] < at_least:
            raise ValueError(
                f"Expected at least {at_least} runs in `{name}[{task!r}]`, got "
                f"{values.shape[-1]}. Train more seeds, or leave the task out by name."
            )
        if not np.isfinite(values).all():
            raise ValueError(
                f"Expected finite `{name}[{task!r}]`, got "
                f"{int((~np.isfinite(values)).sum())} NaN or infinite of {values.size} scores. "
                "Leave out what is not known, by name."
            )
    return arrays


def _numbers(name: str, values: npt.ArrayLike) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # the last by tensors with gradients
        raise ValueError(f"Expected `{name}` to be an array of numbers, got: {error}.") from error


def check_same_tasks(x: Mapping[str, object], y: Mapping[str, object]) -> None:
    """Raise unless two arms were scored on the same tasks."""
    if x.keys() != y.keys():
        raise ValueError(
            f"Expected `x` and `y` to hold the same tasks, got {sorted(x.keys() - y.keys())} in "
            f"`x` only and {sorted(y.keys() - x.keys())} in `y` only. Compare the common ones."
        )
