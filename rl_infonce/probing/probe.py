"""Fit one linear probe per variable, under a named protocol."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import torch

from rl_infonce.checks import check_choice
from rl_infonce.probing.anand2019 import Anand2019, fit_anand2019
from rl_infonce.probing.arrays import as_array, as_features
from rl_infonce.probing.converged import Converged, fit_converged
from rl_infonce.probing.data import IntArray, Labels, checked_labels
from rl_infonce.probing.linear import Probe
from rl_infonce.probing.splits import Split
from rl_infonce.probing.standardise import Standardisation

PROTOCOLS = ("converged", "anand2019")
Protocol = str | Anand2019 | Converged


def protocol_settings(protocol: Protocol) -> Anand2019 | Converged:
    """Return the settings that a protocol's name stands for; settings are returned as they are."""
    if isinstance(protocol, Anand2019 | Converged):
        return protocol
    if not isinstance(protocol, str):
        raise TypeError(
            f"Expected `protocol` to be one of {PROTOCOLS}, Converged(...) or Anand2019(...), got "
            f"{protocol!r}."
        )
    check_choice("protocol", protocol, PROTOCOLS)
    return Anand2019() if protocol == "anand2019" else Converged()


def fit_probe(
    features: npt.NDArray[np.float32],
    labels: Labels,
    split: Split,
    *,
    protocol: Protocol = "converged",
    episode_ids: IntArray | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Probe:
    """Fit a linear softmax classifier per variable on frozen features.

    Args:
        features: Features [K, D] float32, an array, a tensor or a list.
        labels: Integers [K] in 0..255 by variable.
        split: Rows for training and validation; the test rows are not used.
        protocol: "converged" or "anand2019" for their defaults, or `Converged(...)` or
            `Anand2019(...)` with settings of your own.
        episode_ids: Episode of each frame [K], by which `Anand2019` draws its batches.
        seed: Seed of the probe's initial weights and batches; "converged" has neither.
        device: Device to train on.

    Returns:
        The fitted probe.

    Raises:
        TypeError: If labels or rows are not integers, or features no real numbers.
        ValueError: If shapes, labels or the protocol do not fit, features hold NaN or infinity,
            or none of them varies.
    """
    settings = protocol_settings(protocol)
    features, split = checked_features(features, split, needed=("train", "validation"))
    labels = checked_labels(labels, len(features))
    episode_ids = None if episode_ids is None else as_array(episode_ids)
    if isinstance(settings, Anand2019):
        return fit_anand2019(
            features, labels, split, settings, episode_ids=episode_ids, seed=seed, device=device
        )
    return fit_converged(features, labels, split, settings, device=device)


def checked_features(
    features: npt.NDArray[np.float32], split: Split, needed: Collection[str]
) -> tuple[npt.NDArray[np.float32], Split]:
    """Return features and rows as arrays: a finite matrix that varies in training.

    The parts that are not needed may be empty.
    """
    features, split = as_features(features), Split(*map(as_array, split))
    for part, rows in zip(Split._fields, split, strict=True):
        if len(rows) == 0:
            if part in needed:
                raise ValueError(f"Expected frames in the {part} part of `split`, got none.")
            continue
        if rows.dtype.kind not in "iu":
            raise TypeError(
                f"Expected the {part} rows of `split` to be integers, got {rows.dtype}. "
                "np.flatnonzero returns those of a mask."
            )
        if rows.min() < 0 or rows.max() >= len(features):
            raise ValueError(
                f"Expected the {part} rows of `split` in 0..{len(features) - 1}, as there are "
                f"{len(features)} features, got {rows.min()}..{rows.max()}."
            )
    if not Standardisation.of(features[split.train]).varies.any():
        raise ValueError(
            f"Expected `features` to vary, got the same {features.shape[1]} numbers for all "
            f"{len(split.train)} training frames. The encoder has collapsed, or its input is blank."
        )
    return features, split
