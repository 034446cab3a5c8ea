"""k nearest neighbours, which show the geometry of the features without any training."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_infonce.checks import check_count
from rl_infonce.probing.data import N_CLASSES, Labels, checked_labels
from rl_infonce.probing.probe import checked_features
from rl_infonce.probing.scores import ProbeScores, score_predictions
from rl_infonce.probing.splits import Split
from rl_infonce.probing.standardise import Standardisation
from rl_infonce.probing.task import ProbingTask

_DISTANCES_PER_BLOCK = 2**24  # 64 MB of float32


def knn_predictions(
    features: npt.NDArray[np.float32],
    labels: Labels,
    split: Split,
    *,
    n_neighbours: int = 5,
    device: torch.device | str = "cpu",
) -> dict[str, npt.NDArray[np.uint8]]:
    """Predict the majority label of the nearest training frames, by Euclidean distance.

    Each dimension is first standardised on the training part. The search is exact, in blocks of
    test frames so that memory stays below a few hundred MB. A tie goes to the label whose
    neighbours are nearer by rank.

    Args:
        features: Features [K, D] float32, an array, a tensor or a list.
        labels: Integers [K] in 0..255 by variable.
        split: Training rows to search and test rows to predict.
        n_neighbours: Number of neighbours that vote, 1 <= n <= training frames.
        device: Device to compute on.

    Returns:
        Predicted labels [n_test] by variable.

    Raises:
        TypeError: If `n_neighbours`, rows or labels are not integers.
        ValueError: If shapes do not fit, features are not finite or do not vary, or there are
            fewer training frames than neighbours.
    """
    features, split = checked_features(features, split, needed=("train", "test"))
    labels = checked_labels(labels, len(features))
    check_count("n_neighbours", n_neighbours)
    if n_neighbours > len(split.train):
        raise ValueError(
            f"Expected `n_neighbours` to be at most {len(split.train)}, the number of training "
            f"frames, got {n_neighbours}."
        )
    standardisation = Standardisation.of(features[split.train])
    train, test = (
        torch.as_tensor(standardisation(features[rows]), dtype=torch.float32, device=device)
        for rows in (split.train, split.test)
    )
    neighbours = _nearest(train, test, n_neighbours)  # [n_test, n]
    found = {}
    for name, values in labels.items():
        known = torch.as_tensor(values[split.train], dtype=torch.int64, device=device)
        found[name] = _vote(known[neighbours]).cpu().numpy().astype(np.uint8)
    return found


def knn_scores(
    features: npt.NDArray[np.float32],
    task: ProbingTask,
    *,
    n_neighbours: int = 5,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> ProbeScores:
    """Score the majority label of the nearest training frames; see `knn_predictions`.

    Args:
        features: Features [K, D] float32, one row per observation of the task.
        task: Split and labels.
        n_neighbours: Number of neighbours that vote.
        seed: Seed of the bootstrap.
        device: Device to compute on.

    Returns:
        The scores, with the protocol "knn".
    """
    predictions = knn_predictions(
        features, task.labels, task.split, n_neighbours=n_neighbours, device=device
    )
    settings = {"n_neighbours": n_neighbours, "seed": seed}
    return score_predictions(predictions, task, protocol="knn", settings=settings, seed=seed)


def _nearest(train: Tensor, test: Tensor, n_neighbours: int) -> Tensor:
    """Return the rows [n_test, n] of the nearest training frames, nearest first."""
    squares = train.square().sum(dim=1)
    block = max(_DISTANCES_PER_BLOCK // len(train), 1)
    # |a - b|^2 - |a|^2 has the same order as |a - b|^2
    return torch.cat(
        [
            torch.addmm(squares, rows, train.T, alpha=-2).topk(n_neighbours, largest=False).indices
            for rows in torch.split(test, block)
        ]
    )


def _vote(candidates: Tensor) -> Tensor:
    """Return the most frequent label of each row [B, n], whose entries are nearest first."""
    n = candidates.shape[1]
    ranks = torch.arange(n, 0, -1, dtype=torch.float32, device=candidates.device)
    weights = 1 + ranks / (n * (n + 1))  # the extras sum to 1/2: they only decide ties
    votes = torch.zeros(len(candidates), N_CLASSES, device=candidates.device)
    return votes.scatter_add_(1, candidates, weights.expand_as(candidates)).argmax(dim=1)
