"""Choose training, validation and test frames by episode, and variables.

Test frames that training or validation has seen are left out, as published; those of validation
that training has seen stay, and count in the choice of penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_generator, check_number, check_shape
from rl_infonce.probing.arrays import as_array, as_arrays
from rl_infonce.probing.data import IntArray, Labels, check_integers


class Split(NamedTuple):
    """Ascending row indices of the frames in each part, int64."""

    train: IntArray
    validation: IntArray
    test: IntArray


def split_episodes(
    episode_ids: IntArray,
    rng: np.random.Generator,
    *,
    fractions: Sequence[float] = (0.7, 0.1, 0.2),
    shuffle: bool = True,
) -> Split:
    """Give whole episodes to training, validation and test.

    Frames of one episode resemble each other, so a split by frames would test memory. Fractions
    count episodes, not frames, as Anand et al. 2019 do; unlike their code, which shuffles an index
    and then does not use it, this function really shuffles.

    Args:
        episode_ids: Integers [K], equal within an episode and different between any two. If
            episodes are the lives of a game, pass the ids of the games.
        rng: Source of all randomness.
        fractions: Shares of the episodes for training, validation and test, each > 0, with a sum of
            at most 1; the rest is not used. Each part gets at least one episode.
        shuffle: Whether to shuffle; the published order is that of first appearance.

    Returns:
        Row indices of each part, ascending.

    Raises:
        TypeError: If `episode_ids` are not integers, or `rng` is a seed.
        ValueError: If there are fewer than 3 episodes or the fractions do not fit.
    """
    episode_ids = as_array(episode_ids)
    check_integers("episode_ids", episode_ids)
    check_shape("episode_ids", episode_ids, ("K",))
    check_generator(rng)
    _check_fractions(fractions)
    _, first, episode_of_row = np.unique(episode_ids, return_index=True, return_inverse=True)
    n_episodes = len(first)
    if n_episodes < 3:
        raise ValueError(
            f"Expected at least 3 episodes, one each for training, validation and test, "
            f"got {n_episodes} in {len(episode_ids)} frames. Collect more steps."
        )
    order = rng.permutation(n_episodes) if shuffle else np.argsort(first)
    part_of_episode = np.full(n_episodes, 3)
    start = 0
    for part, size in enumerate(_part_sizes(n_episodes, fractions)):
        part_of_episode[order[start : start + size]] = part
        start += size
    part_of_row = part_of_episode[episode_of_row]
    return Split(*(np.flatnonzero(part_of_row == part).astype(np.int64) for part in range(3)))


def _check_fractions(fractions: Sequence[float]) -> None:
    if len(fractions) != 3:
        raise ValueError(
            "Expected `fractions` for training, validation and test, "
            f"got {len(fractions)} numbers: {tuple(fractions)}."
        )
    for fraction in fractions:
        check_number("fractions", fraction, above=0)
    if sum(fractions) > 1 + 1e-9:
        raise ValueError(
            f"Expected `fractions` to sum to at most 1, got {tuple(fractions)} "
            f"with the sum {sum(fractions):g}."
        )


def _part_sizes(n_episodes: int, fractions: Sequence[float]) -> list[int]:
    """Return the number of episodes per part, cut at the rounded shares, none of which is empty."""
    cuts = np.floor(np.cumsum(fractions) * n_episodes + 1e-9).astype(int)
    sizes: list[int] = np.diff(cuts, prepend=0).tolist()
    while 0 in sizes:
        empty = sizes.index(0)
        if sum(sizes) == n_episodes:
            sizes[sizes.index(max(sizes))] -= 1
        sizes[empty] += 1
    return sizes


def drop_seen_frames(split: Split, digests: npt.NDArray[Any]) -> Split:
    """Remove frames from the test part that also occur in training or validation.

    Args:
        split: The split.
        digests: Digests [K] of the frames; equal frames have equal digests; see `frame_digests`.

    Returns:
        The split with the test rows that are new to the probe; there may be none.
    """
    split, digests = Split(*map(as_array, split)), as_array(digests)
    seen = np.concatenate([digests[split.train], digests[split.validation]])
    return split._replace(test=split.test[~np.isin(digests[split.test], seen)])


def entropy(values: npt.NDArray[Any]) -> float:
    """Return the Shannon entropy of the values' frequencies in nats, 0 if there are none."""
    _, counts = np.unique(as_array(values), return_counts=True)
    shares = counts / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum()) + 0.0


def drop_low_entropy(
    labels: Labels, rows: IntArray, *, threshold: float = 0.6
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Keep the variables that vary enough to be worth probing (Anand et al. 2019, section 5).

    Args:
        labels: Labels [K] by variable.
        rows: Rows to judge by: training rows, so that the test part stays unseen (the published
            code judges by all rows).
        threshold: Least entropy in nats, >= 0.

    Returns:
        The variables kept with their labels, and for each of the others the reason.

    Raises:
        ValueError: If there are no rows or the threshold is negative.
    """
    check_number("threshold", threshold, at_least=0)
    if len(rows) == 0:
        raise ValueError("Expected `rows` to judge the variables by, got none.")
    labels, rows = as_arrays("labels", labels), as_array(rows)
    entropies = {variable: entropy(values[rows]) for variable, values in labels.items()}
    kept = {v: labels[v] for v, nats in entropies.items() if nats >= threshold}
    not_probed = {
        variable: f"entropy of {nats:.3f} nats is below {threshold:g} in {len(rows)} frames"
        for variable, nats in entropies.items()
        if variable not in kept
    }
    return kept, not_probed
