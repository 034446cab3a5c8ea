"""Many runs of one arm as one number: over tasks and seeds, as Agarwal et al. 2021 propose.

"Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv 2108.13264.

Shared by all functions here:

- `scores` maps each task to [..., n_runs] finite scores, usually normalised. Leading axes are
  independent problems, e.g. windows of training or resamples, and are the same for all tasks.
- Tasks may have unequal numbers of runs. Nothing here can know which runs are missing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rl_infonce.report.run_scores import Scores, check_same_tasks, checked_scores

FloatArray = npt.NDArray[np.float64]


def mean(scores: Scores) -> FloatArray:
    """Return the mean over tasks of each task's mean: [...].

    Every task counts the same, however many runs it has.
    """
    checked = checked_scores("scores", scores)
    return np.asarray(np.mean([values.mean(axis=-1) for values in checked.values()], axis=0))


def interquartile_mean(scores: Scores) -> FloatArray:
    """Return the mean of the middle half of all runs of all tasks: [...].

    Of N runs, floor(N / 4) are left out at either end (Agarwal et al. 2021, sec. 4.3, and their
    rliable). As every run counts the same, a task with more runs counts more. It describes the
    typical run: a gain in a task that is among the easiest or hardest quarter changes nothing.
    """
    pooled = np.sort(np.concatenate(list(checked_scores("scores", scores).values()), axis=-1))
    n_runs = pooled.shape[-1]
    return np.asarray(pooled[..., n_runs // 4 : n_runs - n_runs // 4].mean(axis=-1))


def probability_of_improvement(x: Scores, y: Scores) -> FloatArray:
    """Return how probable it is that a run of x scores above one of y on a random task: [...].

    The share of pairs of runs with x > y, ties half, averaged over tasks (Agarwal et al. 2021, sec.
    4.3); the Mann-Whitney U of each task over its number of pairs. 0.5 if the arms are equal. It
    says how often, not by how much.
    """
    ours, theirs = checked_scores("x", x), checked_scores("y", y)
    check_same_tasks(ours, theirs)
    shares = []
    for task, values in ours.items():
        first, second = values[..., :, None], theirs[task][..., None, :]  # pairs [..., n, m]
        shares.append(((first > second) + 0.5 * (first == second)).mean(axis=(-2, -1)))
    return np.asarray(np.mean(shares, axis=0))


def performance_profile(scores: Scores, thresholds: npt.ArrayLike) -> FloatArray:
    """Return the share of runs above each of T thresholds, averaged over tasks: [..., T].

    The run-score distribution of Agarwal et al. 2021 (sec. 4.2): an arm whose profile lies above
    that of another everywhere is better at every quantile.
    """
    levels = np.asarray(thresholds, dtype=np.float64)
    checked = checked_scores("scores", scores)
    shares = [(values[..., None] > levels).mean(axis=-2) for values in checked.values()]
    return np.asarray(np.mean(shares, axis=0))
