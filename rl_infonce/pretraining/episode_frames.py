"""Which frames make a sample: whole episodes held out, neighbours in time, others of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_generator, check_shape
from rl_infonce.probing.arrays import as_array
from rl_infonce.probing.data import check_integers, checked_labels

IntArray = npt.NDArray[np.int64]

_HELD_OUT_SHARE = 0.2


@dataclass(frozen=True)
class EpisodeFrames:
    """Frames in the order of time, and the episodes they belong to.

    Ids, rows and labels may be tensors or lists, and are kept as arrays.

    Attributes:
        observations: K frames: an array, a memory map, or a view with `__len__` and `.shape` that
            integer arrays index, giving uint8 [B, C, H, W].
        episode_ids: [K] integers; the frames of an episode follow one another.
        rows: [N] rows that may be used, ascending, of whole episodes.
        labels: Variable to [K] integers in 0..255, for objectives that are told them.

    Raises:
        TypeError: If observations are no array, labels no dictionary, or episode ids, rows or
            labels no integers.
        ValueError: If lengths differ, an episode is torn apart, rows are out of order or leave out
            a part of an episode, or a label is outside 0..255.
    """

    observations: Any
    episode_ids: IntArray
    rows: IntArray
    labels: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("episode_ids", "rows"):
            object.__setattr__(self, name, as_array(getattr(self, name)))
        check_integers("episode_ids", self.episode_ids)
        if not hasattr(self.observations, "shape"):
            raise TypeError(
                "Expected `observations` to be an array of frames, got "
                f"{type(self.observations).__name__}. Stack its frames by numpy.stack."
            )
        check_shape("episode_ids", self.episode_ids, (len(self.observations),))
        if self.labels:
            object.__setattr__(self, "labels", checked_labels(self.labels, len(self.observations)))
        n_runs = 1 + int((np.diff(self.episode_ids) != 0).sum())
        n_episodes = len(np.unique(self.episode_ids))
        if n_runs != n_episodes:
            raise ValueError(
                f"Expected the frames of each episode one after the other, got {n_episodes} "
                f"episodes in {n_runs} pieces. Number the episodes of all environments apart."
            )
        _check_rows(self.rows, self.episode_ids)

    def starts(self, length: int) -> IntArray:
        """Return the usable rows with which `length` frames of one episode begin."""
        last = self.rows + length - 1
        inside = last < len(self.episode_ids)
        rows = self.rows[inside]
        legal: IntArray = rows[self.episode_ids[rows] == self.episode_ids[rows + length - 1]]
        if len(legal) == 0:
            _, counts = np.unique(self.episode_ids[self.rows], return_counts=True)
            raise ValueError(
                f"Expected an episode of at least {length} frames, got {len(counts)} of at most "
                f"{counts.max(initial=0)}. Collect longer episodes, or choose an objective that "
                "looks less far."
            )
        return legal

    def others(self, rows: IntArray, rng: np.random.Generator) -> IntArray:
        """Return for each row another one of its episode, uniformly; the row itself if alone."""
        is_new = self.episode_ids[1:] != self.episode_ids[:-1]
        starts = np.flatnonzero(np.concatenate([[True], is_new]))
        ends = np.append(starts[1:], len(self.episode_ids))
        run = np.searchsorted(starts, rows, side="right") - 1
        n_others = np.maximum(ends[run] - starts[run] - 1, 1)
        steps = rng.integers(1, n_others, endpoint=True)
        drawn = starts[run] + (rows - starts[run] + steps) % (ends[run] - starts[run])
        return drawn.astype(np.int64)


def _check_rows(rows: IntArray, episode_ids: IntArray) -> None:
    """Raise unless rows are those of whole episodes: a pair must not reach into another part."""
    check_integers("rows", rows)
    check_shape("rows", rows, ("N",))
    if (np.diff(rows, prepend=-1) <= 0).any() or (rows[-1:] >= len(episode_ids)).any():
        raise ValueError(
            f"Expected `rows` ascending, of 0..{len(episode_ids) - 1}, got {rows}. Sort them, each "
            "once."
        )
    is_used = np.zeros(len(episode_ids), np.bool_)
    is_used[rows] = True
    cuts = np.flatnonzero(np.diff(is_used) & (np.diff(episode_ids) == 0))
    if len(cuts):
        raise ValueError(
            f"Expected `rows` of whole episodes, got a part of episode {episode_ids[cuts[0]]}, cut "
            f"after row {cuts[0]}. Split by episode, as `hold_out_episodes` does."
        )


def training_and_validation(
    observations: Any,
    episode_ids: IntArray,
    rng: np.random.Generator,
    *,
    group_ids: IntArray | None = None,
) -> tuple[EpisodeFrames, EpisodeFrames]:
    """Return the frames to learn from and those of held-out episodes; see `hold_out_episodes`.

    Args:
        observations: K frames, as `EpisodeFrames` takes them.
        episode_ids: [K] integers, equal within an episode and different between any two.
        rng: Source of all randomness.
        group_ids: [K] integers, equal within episodes that share a state, such as the lives of one
            game with their score: whole groups are held out. None takes each episode for itself;
            where `LabelledObservations` have `group_ids`, pass these.
    """
    train, held_out = hold_out_episodes(episode_ids if group_ids is None else group_ids, rng)
    return (
        EpisodeFrames(observations, episode_ids, train),
        EpisodeFrames(observations, episode_ids, held_out),
    )


def hold_out_episodes(episode_ids: IntArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Return the rows for training and those held out, ascending, whole episodes each.

    A fifth of the episodes is held out, at least one.

    Args:
        episode_ids: [K] integers, equal within an episode and different between any two.
        rng: Source of all randomness.

    Raises:
        TypeError: If `episode_ids` are not integers, or `rng` is a seed.
        ValueError: If there are fewer than 2 episodes.
    """
    episode_ids = as_array(episode_ids)
    check_integers("episode_ids", episode_ids)
    check_shape("episode_ids", episode_ids, ("K",))
    check_generator(rng)
    episodes, episode_of_row = np.unique(episode_ids, return_inverse=True)
    if len(episodes) < 2:
        raise ValueError(
            f"Expected at least 2 episodes to hold some out, got {len(episodes)} in "
            f"{len(episode_ids)} frames. Collect more steps."
        )
    n_held_out = max(round(_HELD_OUT_SHARE * len(episodes)), 1)
    is_held_out = np.zeros(len(episodes), dtype=np.bool_)
    is_held_out[rng.permutation(len(episodes))[:n_held_out]] = True
    held_out = is_held_out[episode_of_row]
    return np.flatnonzero(~held_out).astype(np.int64), np.flatnonzero(held_out).astype(np.int64)
