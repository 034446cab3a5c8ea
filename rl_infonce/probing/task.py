"""A probing task: which frames train and test the probes, for which variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_choice, check_count
from rl_infonce.probing.data import IntArray, LabelledObservations
from rl_infonce.probing.splits import (
    Split,
    drop_low_entropy,
    drop_seen_frames,
    split_episodes,
)


@dataclass(frozen=True)
class ProbingTask:
    """What all probes of one data set share, so that their scores compare.

    Attributes:
        split: Row indices of training, validation and test frames.
        labels: Labels [K] by probed variable.
        not_probed: The other variables, with the reason.
        episode_ids: Episode of each frame [K].
        group_ids: Group of each frame [K], whose episodes lie in one part of the split.
        categories: Categories by variable.
        provenance: What produced the data and the task, as JSON can hold it.
    """

    split: Split
    labels: Mapping[str, npt.NDArray[Any]]
    not_probed: Mapping[str, str]
    episode_ids: IntArray
    group_ids: IntArray
    categories: Mapping[str, tuple[str, ...]]
    provenance: Mapping[str, Any]


def make_task(
    labelled: LabelledObservations,
    rng: np.random.Generator | int,
    *,
    threshold: float = 0.6,
    fractions: Sequence[float] = (0.7, 0.1, 0.2),
    shuffle: bool = True,
    min_episode_length: int = 1,
    entropy_on: str = "train",
) -> ProbingTask:
    """Split the data, remove repeated frames from the test part, and choose the variables.

    Groups of episodes are split, or episodes if there are no groups: otherwise, probes would train
    and test on what the lives of a game share, such as its score.

    The published task (Anand et al. 2019, code) is `shuffle=False`, `min_episode_length=65` and
    `entropy_on="all"`, with two deviations: the published code also drops test episodes with one
    frame left after repeated frames are removed, which stay here; and it judges the entropy before
    that removal, here afterwards.

    Args:
        labelled: The data.
        rng: Source of all randomness, or its seed.
        threshold: Least entropy in nats of a variable that is probed.
        fractions: Shares of the groups for training, validation and test.
        shuffle: Whether to shuffle the groups before they are split.
        min_episode_length: Number of frames; shorter episodes are not used.
        entropy_on: "train" judges the entropy by the training part, and leaves out variables with
            one value in the test part; "all" judges by the frames of all three parts, without
            the repeated ones.

    Raises:
        TypeError: If the data are no `LabelledObservations`, or an argument has the wrong type.
        ValueError: If an argument does not fit, there are too few episodes, every test frame also
            occurs in training or validation, or no variable varies enough.
    """
    if not isinstance(labelled, LabelledObservations):
        raise TypeError(
            f"Expected `labelled` to be LabelledObservations, got {type(labelled).__name__}. "
            'Frames of a game become such by `frames.labelled("agent")`.'
        )
    if not isinstance(rng, np.random.Generator):
        check_count("rng", rng, at_least=0)  # numpy would take None for a seed of its own choice
    check_count("min_episode_length", min_episode_length)
    check_choice("entropy_on", entropy_on, ["all", "train"])
    used = _rows_of_long_episodes(labelled.episode_ids, min_episode_length)
    group_ids = labelled.episode_ids if labelled.group_ids is None else labelled.group_ids
    parts = split_episodes(
        group_ids[used], np.random.default_rng(rng), fractions=fractions, shuffle=shuffle
    )
    whole = Split(*(used[rows] for rows in parts))
    split = drop_seen_frames(whole, labelled.digests)
    if len(split.test) == 0:
        raise ValueError(
            f"Expected test frames that do not occur in training or validation, got 0 of "
            f"{len(whole.test)}. Collect more episodes, or use a less repetitive policy."
        )
    judged = split.train if entropy_on == "train" else np.concatenate(split)
    kept, not_probed = drop_low_entropy(labelled.labels, judged, threshold=threshold)
    if entropy_on == "train":
        kept, constant = _without_constants(kept, split.test)
        not_probed |= constant
    if not kept:
        reasons = "; ".join(f"{variable}: {reason}" for variable, reason in not_probed.items())
        raise ValueError(f"Expected a variable to probe, got none ({reasons}).")
    provenance = {
        **labelled.provenance,
        "entropy_threshold": threshold,
        "entropy_on": entropy_on,
        "fractions": list(fractions),
        "shuffled_split": shuffle,
        "min_episode_length": min_episode_length,
        "n_test_duplicates": len(whole.test) - len(split.test),
    }
    return ProbingTask(
        split, kept, not_probed, labelled.episode_ids, group_ids, labelled.categories, provenance
    )


def _without_constants(
    labels: Mapping[str, npt.NDArray[Any]], test: IntArray
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Return variables with several values in the test part, and the reasons against the others."""
    constant = {
        variable: f"one value in all {len(test)} test frames, which every probe finds"
        for variable, values in labels.items()
        if len(np.unique(values[test])) == 1
    }
    return {v: labels[v] for v in labels if v not in constant}, constant


def _rows_of_long_episodes(episode_ids: IntArray, min_length: int) -> IntArray:
    _, episodes, lengths = np.unique(episode_ids, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(lengths[episodes] >= min_length)
    if len(rows) == 0 and len(episode_ids):
        raise ValueError(
            f"Expected episodes of at least `min_episode_length`={min_length} frames, "
            f"got {len(lengths)} of at most {lengths.max()}. Lower it, or collect longer episodes."
        )
    return rows.astype(np.int64)
