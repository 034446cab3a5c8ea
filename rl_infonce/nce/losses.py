"""InfoNCE from scores: one small pure function per estimator, one loss per anchor, in nats."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_infonce.checks import check_shape
from rl_infonce.nce._candidates import allowed_scores
from rl_infonce.nce._precision import autocast_off

__all__ = ["info_nce", "symmetric_info_nce"]


def info_nce(scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the InfoNCE loss of each anchor.

    Cross entropy of picking the positive among all candidates (van den Oord et al. 2018,
    "Contrastive Predictive Coding", eq. 4). Unlike NT-Xent (SimCLR), anchors are not candidates
    for one another. Computed in at least float32, also under autocast.

    Args:
        scores: [..., B, M] log-scores, M >= B, already divided by the temperature; the positive
            of row i is column i. Leading axes are independent problems.
        mask: Boolean, broadcastable to `scores`; True = this candidate takes part. A row left
            with its positive alone has loss 0 and gradient 0.

    Returns:
        [..., B] losses in nats, >= 0, float32 or float64. A critic that cannot tell n candidates
        apart scores log(n).

    Raises:
        TypeError: If `scores` is not floating point or `mask` is not boolean.
        ValueError: If a shape does not fit or `mask` excludes a positive.

    Example:
        >>> info_nce(torch.zeros(1, 4)).exp()
        tensor([4.])
    """
    with autocast_off(scores):
        return _nats_to_pick_positive(allowed_scores(scores, mask))


def symmetric_info_nce(scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the mean of both directions: anchors pick candidates, candidates pick anchors.

    The CLIP form (Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
    Supervision", fig. 3): the average of two softmax losses, over the rows and over the columns of
    one score matrix. Entry i is the mean of row i's and column i's loss; CLIP reduces them further.

    Args:
        scores: [..., B, B] log-scores, already divided by the temperature; the positives are on
            the diagonal.
        mask: Boolean, broadcastable to `scores`; True = this pair takes part, in both directions.

    Returns:
        [..., B] losses in nats, >= 0, float32 or float64.

    Raises:
        TypeError: If `scores` is not floating point or `mask` is not boolean.
        ValueError: If `scores` is not square, a shape does not fit or `mask` excludes a positive.
    """
    check_shape("scores", scores, ["...", "B", "M"])
    if scores.shape[-2] != scores.shape[-1]:
        raise ValueError(f"Expected square `scores` [..., B, B], got {tuple(scores.shape)}.")
    with autocast_off(scores):
        allowed = allowed_scores(scores, mask)  # [..., B, B]
        return (_nats_to_pick_positive(allowed) + _nats_to_pick_positive(allowed.mT)) / 2


def _nats_to_pick_positive(scores: Tensor) -> Tensor:
    """Return [..., B] cross entropies of column i in row i of [..., B, M]."""
    rows = scores.shape[:-1]  # (..., B)
    positives = torch.arange(rows[-1], device=scores.device).expand(rows)  # [..., B]
    losses = F.cross_entropy(
        scores.reshape(-1, scores.shape[-1]), positives.reshape(-1), reduction="none"
    )
    return losses.reshape(rows)  # [..., B]
