"""What one training run says: its returns over the budget, as a curve and as one number.

Shared by all functions here:

- `steps` [E] integers in [1, `n_steps_done`], never falling: at which environment step of all
  environments together each episode ended.
- `returns` [E] finite: what each episode returned, unclipped.
- `n_steps` is the budget in environment steps; episodes that end after it are left out, so that
  runs which overshoot by a part of a rollout are compared over the same steps.
- `n_steps_done` is how long the run lasted; a run that stopped before its budget is an error.
- `n_windows`, in [1, n_steps], and `share`, in (0, 1], are the same for all runs that are compared.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_count, check_number, check_shape

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def return_curve(
    steps: npt.ArrayLike,
    returns: npt.ArrayLike,
    n_steps: int,
    n_windows: int,
    *,
    n_steps_done: int,
) -> FloatArray:
    """Return the mean return of the episodes that ended in each of n equal parts of the budget.

    Window i holds the steps in (i, i + 1] n_steps / n_windows, so that curves of runs with
    different episodes lie on the same axis. A window in which no episode ended takes the last value
    before it, NaN if there is none.

    Example:
        >>> return_curve([1, 2, 8], [1.0, 3.0, 9.0], n_steps=8, n_windows=4, n_steps_done=8)
        array([2., 2., 2., 9.])
    """
    ended, values = _checked_episodes(steps, returns, n_steps, n_steps_done)
    check_count("n_windows", n_windows, at_most=n_steps)
    windows = (ended * n_windows - 1) // n_steps  # [E], the last step of a window belongs to it
    counts = np.bincount(windows, minlength=n_windows)
    sums = np.bincount(windows, weights=values, minlength=n_windows)
    means = np.full(n_windows, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    known = np.maximum.accumulate(np.where(counts > 0, np.arange(n_windows), 0))
    return means[known]


def area_under_curve(
    steps: npt.ArrayLike,
    returns: npt.ArrayLike,
    n_steps: int,
    *,
    n_steps_done: int,
    n_windows: int = 100,
) -> float:
    """Return the mean training return over the whole budget: the mean of `return_curve`.

    Every part of the budget counts the same. In a mean over episodes, an agent that learns to live
    longer would end fewer of them, and its worst ones would count most. Windows before the first
    episode ended take the first value that is known.
    """
    curve = return_curve(steps, returns, n_steps, n_windows, n_steps_done=n_steps_done)
    known = np.flatnonzero(~np.isnan(curve))
    if not known.size:
        raise ValueError(
            f"Expected `steps` to hold an episode that ended within `n_steps`={n_steps}, got none. "
            "Leave the run out by name, or train longer."
        )
    curve[: known[0]] = curve[known[0]]
    return float(curve.mean())


def final_return(
    steps: npt.ArrayLike,
    returns: npt.ArrayLike,
    n_steps: int,
    *,
    n_steps_done: int,
    share: float = 0.1,
) -> float:
    """Return the mean return of the episodes that ended in the last part of the budget."""
    ended, values = _checked_episodes(steps, returns, n_steps, n_steps_done)
    check_number("share", share, above=0, at_most=1)
    start = n_steps - round(share * n_steps)
    chosen = values[ended > start]
    if not chosen.size:
        raise ValueError(
            f"Expected an episode that ended in the steps ({start}, {n_steps}], got none. "
            f"Raise `share`={share:g}, for all runs that are compared."
        )
    return float(chosen.mean())


def _checked_episodes(
    steps: npt.ArrayLike, returns: npt.ArrayLike, n_steps: int, n_steps_done: int
) -> tuple[IntArray, FloatArray]:
    """Return `steps` and `returns` of the episodes that ended within the budget."""
    ended, values = np.asarray(steps), np.asarray(returns, dtype=np.float64)
    check_shape("steps", ended, ("E",))
    check_shape("returns", values, ended.shape)
    if ended.size and not np.issubdtype(ended.dtype, np.integer):
        raise TypeError(f"Expected `steps` to hold integers, got {ended.dtype}.")
    ended = ended.astype(np.int64)
    if (np.diff(ended) < 0).any():
        raise ValueError("Expected `steps` that never fall, got unsorted ones. Sort the episodes.")
    if not np.isfinite(values).all():
        raise ValueError("Expected finite `returns`, got NaN or infinity. Leave the run out.")
    check_count("n_steps", n_steps)
    check_count("n_steps_done", n_steps_done)
    if n_steps_done < n_steps:
        raise ValueError(
            f"Expected a run of at least `n_steps`={n_steps} steps, got `n_steps_done`="
            f"{n_steps_done}. Train it to the end, or compare all runs over a smaller budget."
        )
    if ended.size and not (ended[0] >= 1 and ended[-1] <= n_steps_done):
        raise ValueError(
            f"Expected `steps` in [1, n_steps_done={n_steps_done}], got {ended[0]} to {ended[-1]}."
        )
    within = ended <= n_steps
    return ended[within], values[within]
