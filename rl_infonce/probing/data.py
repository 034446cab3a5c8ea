"""Data of a probe: observations, the labels they should reveal, and their episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rl_infonce.checks import check_number, check_shape
from rl_infonce.probing.arrays import as_array, as_arrays, as_observations
from rl_infonce.probing.digests import frame_digests

N_CLASSES = 256
"""Classes of any variable: a label is a byte, as those of RAM are."""

IntArray = npt.NDArray[np.int64]
Labels = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class LabelledObservations:
    """K observations, each with one label per variable and an episode.

    Observations, labels and ids may be tensors or lists, and are kept as arrays.

    Attributes:
        observations: K images or vectors: an array, a memory map, or a view with `__len__`,
            `.shape` and `.dtype` that integer arrays index, giving [B, C, H, W], mostly uint8, or
            [B, n].
        labels: Integers [K] in 0..255 by variable.
        episode_ids: Integers [K], equal within an episode and different between any two.
        categories: Categories by variable; variables may be missing.
        provenance: What produced the data (game, label version and hash, policy, seed, ...), as
            JSON can hold it; copied into every result.
        group_ids: Integers [K], equal within episodes that share a state, such as the lives of one
            game with their score: such a group is for training or for testing. None makes each
            episode a group.

    Raises:
        TypeError: If labels, episode ids or group ids are not integers, labels are no dictionary,
            observations are one, or the categories of a variable are no tuple of names.
        ValueError: If lengths differ, there is no variable, a label is outside 0..255, a category
            names an unknown variable, an episode lies in several groups, or a variable or category
            has a name that scores need for something else.
    """

    observations: Any
    labels: Labels
    episode_ids: IntArray
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    group_ids: IntArray | None = None

    def __post_init__(self) -> None:
        images = as_observations(self.observations)
        arrays: dict[str, Any] = {
            "observations": as_array(images) if isinstance(images, Tensor) else images,
            "labels": checked_labels(self.labels, len(images)),
            "episode_ids": as_array(self.episode_ids),
            "group_ids": None if self.group_ids is None else as_array(self.group_ids),
        }
        for name, value in arrays.items():
            object.__setattr__(self, name, value)
        check_integers("episode_ids", self.episode_ids)
        check_shape("episode_ids", self.episode_ids, (len(self.observations),))
        if self.group_ids is not None:
            _check_groups(self.group_ids, self.episode_ids)
        _check_categories(self.categories, self.labels)

    @cached_property
    def digests(self) -> npt.NDArray[np.uint64]:
        """Digests [K] of the observations, read once for all tasks; see `frame_digests`."""
        return frame_digests(self.observations)


def _check_categories(categories: Mapping[str, tuple[str, ...]], labels: Labels) -> None:
    unknown = sorted(set(categories) - set(labels))
    if unknown:
        raise ValueError(
            f"Expected `categories` of variables in `labels`, which are {sorted(labels)}, "
            f"got {unknown}."
        )
    for variable, names in categories.items():
        if isinstance(names, str):
            raise TypeError(
                f"Expected categories[{variable!r}] to be a tuple of names, got {names!r}. Write "
                f"({names!r},)."
            )
    used = {name for names in categories.values() for name in names}
    taken = sorted((used & set(labels)) | ({"mean"} & {*used, *labels}))
    if taken:
        raise ValueError(
            "Expected no variable or category named 'mean', and none named like the other, got "
            f"{taken}: scores stand under these names. Rename them."
        )


def _check_groups(group_ids: IntArray, episode_ids: IntArray) -> None:
    check_integers("group_ids", group_ids)
    check_shape("group_ids", group_ids, (len(episode_ids),))
    pairs = np.unique(np.stack([episode_ids, group_ids]), axis=1)
    if pairs.shape[1] > len(np.unique(episode_ids)):
        episode = pairs[0][1:][np.diff(pairs[0]) == 0][0]
        raise ValueError(
            f"Expected `group_ids` to hold whole episodes, got episode {episode} in several groups."
        )


def checked_labels(labels: Labels, n_frames: int) -> dict[str, npt.NDArray[Any]]:
    """Return labels as arrays, or raise unless each variable has an integer in 0..255 per frame."""
    found = as_arrays("labels", labels)
    if not found:
        raise ValueError("Expected `labels` for at least one variable, got none.")
    for variable, values in found.items():
        name = f"labels[{variable!r}]"
        check_shape(name, values, (n_frames,))
        check_classes(name, values)
    return found


def check_classes(name: str, values: npt.NDArray[Any]) -> None:
    """Raise unless the array holds integers in 0..255."""
    check_integers(name, values)
    if np.size(values) and (np.min(values) < 0 or np.max(values) >= N_CLASSES):
        raise ValueError(
            f"Expected `{name}` in 0..{N_CLASSES - 1}, got {np.min(values)}..{np.max(values)}. "
            "Renumber the classes from 0, or give fractional numbers to `collect_labelled`, which "
            "cuts them into classes."
        )


def checked_penalties(penalties: Sequence[float]) -> tuple[float, ...]:
    """Return penalties as a tuple."""
    if not isinstance(penalties, Sequence | np.ndarray) or isinstance(penalties, str):
        raise TypeError(
            f"Expected `penalties` to be a sequence of numbers, got {penalties!r}. Pass a single "
            "penalty as penalties=(1e-3,)."
        )
    if not len(penalties):
        raise ValueError("Expected at least one of `penalties`, got none.")
    for penalty in penalties:
        check_number("penalties", penalty, above=0)
    return tuple(float(penalty) for penalty in penalties)


def check_integers(name: str, values: npt.NDArray[Any]) -> None:
    """Raise unless the array holds integers."""
    if not np.issubdtype(np.asarray(values).dtype, np.integer):
        raise TypeError(f"Expected `{name}` to hold integers, got {np.asarray(values).dtype}.")
