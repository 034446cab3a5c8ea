"""Which observations form a pair: episode ids, legal anchors, pair sampling, negative masks.

Everything here sees indices and episode borders only, so it can be compared with brute force on
every small pattern. Times run along axis 0, oldest first; environments along axis 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_count, check_generator, check_shape

__all__ = [
    "Steps",
    "episode_ids",
    "far_mask",
    "futures_among",
    "legal_anchors",
    "negative_mask",
    "sample_pairs",
]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Steps(NamedTuple):
    """Where each of B observations was made.

    Attributes:
        steps: [B] steps by age.
        envs: [B] environments.
        episodes: [B] episodes, unique within one environment.
    """

    steps: IntArray
    envs: IntArray
    episodes: IntArray

    def at(self, chosen: IntArray | BoolArray) -> Steps:
        """Return some of them."""
        return Steps(self.steps[chosen], self.envs[chosen], self.episodes[chosen])


# Below this many starts, listing every legal anchor is as fast as drawing at random.
_LISTED_STARTS = 4096
_DRAWING_ROUNDS = 4


def episode_ids(last_step: BoolArray) -> IntArray:
    """Number the episodes of each environment.

    Args:
        last_step: [T, N] True where the step is the last one of its episode.

    Returns:
        [T, N] ids that start at 0 and rise by one after each last step; unique per environment.

    Raises:
        ValueError: If `last_step` is not a matrix.
    """
    check_shape("last_step", last_step, ("T", "N"))
    ids = np.zeros(last_step.shape, dtype=np.int64)
    np.cumsum(np.asarray(last_step[:-1], dtype=np.bool_), axis=0, out=ids[1:])
    return ids


def legal_anchors(episode_ids: IntArray, horizon: int) -> tuple[IntArray, IntArray]:
    """List every (step, env) whose episode still runs `horizon` steps later.

    Args:
        episode_ids: [T, N] ids that differ between any two episodes of one environment.
        horizon: Steps between anchor and positive, >= 0; 0 makes every step legal.

    Returns:
        Steps [L] and environments [L] of the L legal anchors, ordered by step, then environment.

    Raises:
        TypeError: If `horizon` is not an integer.
        ValueError: If `episode_ids` is not a matrix or `horizon` is negative.
    """
    check_shape("episode_ids", episode_ids, ("T", "N"))
    check_count("horizon", horizon, at_least=0)
    n_starts = max(len(episode_ids) - horizon, 0)
    steps, envs = np.nonzero(episode_ids[:n_starts] == episode_ids[horizon : horizon + n_starts])
    return steps.astype(np.int64), envs.astype(np.int64)


def sample_pairs(
    episode_ids: IntArray,
    horizon: int,
    n_pairs: int,
    rng: np.random.Generator,
    *,
    oldest_row: int = 0,
    n_steps: int | None = None,
) -> tuple[IntArray, IntArray]:
    """Draw distinct anchors uniformly whose positives, `horizon` steps later, share their episode.

    No anchor repeats, as a repeated one would make its own positive a negative. Training draws its
    pairs here.

    Args:
        episode_ids: [R, N] ids that differ between any two episodes of one environment. The rows
            are steps by age, or a ring of them.
        horizon: Steps between anchor and positive, >= 0; the largest one if there are several, as
            anchors that are legal for it are legal for all.
        n_pairs: Number of anchors wanted, >= 1.
        rng: Source of all randomness.
        oldest_row: Row of step 0; the rows go round.
        n_steps: Number T of steps, <= R; None takes all rows.

    Returns:
        Anchor steps [B] and environments [B] in random order; B is the smaller of `n_pairs` and
        the number of legal anchors, possibly 0.

    Raises:
        TypeError: If a number is no integer, or `rng` is a seed.
        ValueError: If `episode_ids` is no matrix, or a number is out of range.
    """
    check_shape("episode_ids", episode_ids, ("R", "N"))
    check_count("horizon", horizon, at_least=0)
    check_count("n_pairs", n_pairs)
    check_generator(rng)
    n_rows, n_envs = episode_ids.shape
    n_steps = n_rows if n_steps is None else n_steps
    check_count("n_steps", n_steps, at_least=0, at_most=n_rows)
    n_starts = max(n_steps - horizon, 0) * n_envs
    if n_starts > max(_LISTED_STARTS, 8 * n_pairs):

        def is_legal(steps: IntArray, envs: IntArray) -> BoolArray:
            rows, later = (steps + oldest_row) % n_rows, (steps + horizon + oldest_row) % n_rows
            same: BoolArray = episode_ids[rows, envs] == episode_ids[later, envs]
            return same

        drawn = _draw_starts(n_starts, n_envs, n_pairs, is_legal, rng)
        if len(drawn) == n_pairs:
            return drawn // n_envs, drawn % n_envs
    by_age = (np.arange(n_steps) + oldest_row) % n_rows
    steps, envs = legal_anchors(episode_ids[by_age], horizon)
    chosen = rng.choice(len(steps), size=min(n_pairs, len(steps)), replace=False)
    return steps[chosen], envs[chosen]


def _draw_starts(
    n_starts: int,
    n_envs: int,
    n_pairs: int,
    is_legal: Callable[[IntArray, IntArray], BoolArray],
    rng: np.random.Generator,
) -> IntArray:
    """Draw starts, keep the legal ones once each: at most `n_pairs` of step * N + env."""
    kept = np.zeros(0, dtype=np.int64)
    for _ in range(_DRAWING_ROUNDS):
        drawn = rng.integers(0, n_starts, size=2 * n_pairs + 16)
        kept = np.concatenate([kept, drawn[is_legal(drawn // n_envs, drawn % n_envs)]])
        _, first = np.unique(kept, return_index=True)
        # In the order of drawing: np.unique sorts, and its head would favour old steps.
        kept = kept[np.sort(first)]
        if len(kept) >= n_pairs:
            return kept[:n_pairs]
    return kept


def futures_among(
    episode_ids: IntArray,
    steps: IntArray,
    envs: IntArray,
    horizon: int,
    *,
    oldest_row: int = 0,
    n_steps: int | None = None,
) -> tuple[BoolArray, IntArray, BoolArray]:
    """Tell which of K observations have a future, which of them it is, and which are futures.

    Args:
        episode_ids: [R, N] ids that differ between any two episodes of one environment. The rows
            are steps by age, or a ring of them.
        steps: [K] steps in [0, T).
        envs: [K] environments; no (step, env) repeats.
        horizon: Steps between anchor and positive, >= 1.
        oldest_row: Row of step 0; the rows go round.
        n_steps: Number T of steps, <= R; None takes all rows.

    Returns:
        [K] whether the episode still runs `horizon` steps later; [K] which of the K observations
        lies there, -1 where none does; [K] whether it already ran `horizon` steps before.

    Raises:
        TypeError: If `horizon` or `n_steps` is no integer.
        ValueError: If the shapes differ, `episode_ids` is no matrix, or a number is out of range.
    """
    check_shape("episode_ids", episode_ids, ("R", "N"))
    check_shape("steps", steps, ("K",))
    check_shape("envs", envs, (len(steps),))
    check_count("horizon", horizon)
    n_rows, n_envs = episode_ids.shape
    n_steps = n_rows if n_steps is None else n_steps
    check_count("n_steps", n_steps, at_least=0, at_most=n_rows)
    episodes = episode_ids[(steps + oldest_row) % n_rows, envs]

    def in_episode(others: IntArray) -> BoolArray:
        inside = (others >= 0) & (others < n_steps)
        same: BoolArray = episode_ids[(others + oldest_row) % n_rows, envs] == episodes
        return inside & same

    later = steps + horizon
    cells, wanted = steps * n_envs + envs, later * n_envs + envs
    order = np.argsort(cells)
    near = np.minimum(np.searchsorted(cells, wanted, sorter=order), len(cells) - 1)
    has_future = in_episode(later)
    candidates = order[near] if len(cells) else near
    is_there = has_future & (cells[candidates] == wanted)
    return has_future, np.where(is_there, candidates, -1), in_episode(steps - horizon)


def far_mask(anchors: Steps, others: Steps, min_gap: int) -> BoolArray:
    """Tell which of M others lie `min_gap` steps or more from each of B anchors, or elsewhere.

    Args:
        anchors: B anchors.
        others: M anchors of candidates.
        min_gap: As in `negative_mask`.

    Returns:
        [B, M] False where both lie in one episode, closer than `min_gap` steps.

    Raises:
        TypeError: If `min_gap` is no integer.
        ValueError: If `min_gap` is negative.
    """
    check_count("min_gap", min_gap, at_least=0)
    same_env = anchors.envs[:, None] == others.envs
    same_episode = anchors.episodes[:, None] == others.episodes
    steps = anchors.steps[:, None].astype(np.int64)  # small integers would wrap around
    close = np.abs(steps - others.steps) < min_gap
    mask: BoolArray = ~(same_env & same_episode & close)
    return mask


def negative_mask(steps: IntArray, envs: IntArray, episodes: IntArray, min_gap: int) -> BoolArray:
    """Tell which candidates may serve each anchor.

    Candidate j is the positive of anchor j; those of anchors close in time are near copies of the
    positive of anchor i and would be pushed apart as negatives.

    Args:
        steps: [B] anchor steps.
        envs: [B] anchor environments.
        episodes: [B] anchor episodes, unique within one environment.
        min_gap: Anchors of one episode closer than this many steps are no negatives of one
            another; 0 masks nothing, 1 masks exact repetitions of the anchor.

    Returns:
        [B, B] True where candidate j takes part for anchor i; the diagonal is always True.

    Raises:
        TypeError: If `min_gap` is no integer.
        ValueError: If the shapes differ or `min_gap` is negative.
    """
    steps = np.asarray(steps, dtype=np.int64)
    check_shape("steps", steps, ("B",))
    check_shape("envs", envs, (len(steps),))
    check_shape("episodes", episodes, (len(steps),))
    check_count("min_gap", min_gap, at_least=0)
    n_anchors = len(steps)
    if min_gap <= 1 and len({*zip(steps.tolist(), envs.tolist(), strict=True)}) == n_anchors:
        return np.ones((n_anchors, n_anchors), dtype=np.bool_)  # nothing is repeated
    where = Steps(steps, envs, episodes)
    mask = far_mask(where, where, min_gap)
    np.fill_diagonal(mask, True)
    return mask
