"""Mutual information from scores, in nats."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_infonce.nce._candidates import check_scores, expand_mask
from rl_infonce.nce._precision import at_least_float32
from rl_infonce.nce.losses import info_nce

__all__ = ["info_nce_bound", "log_candidates"]


def info_nce_bound(scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the InfoNCE lower bound on the mutual information of anchors and positives.

    The mean over anchors of log N_i - loss_i, N_i being the candidates that take part in row i
    (van den Oord et al. 2018, "Contrastive Predictive Coding", sec. 2.3; I_NCE of Poole et
    al. 2019, "On Variational Bounds of Mutual Information"). For any critic it is at most the mean
    of `log_candidates`: a value close to that ceiling says that the batch is too small to show
    more, not how much information there is.

    It is a bound when the other candidates are independent draws. A mask by episode or time keeps
    the formula honest about how many candidates a row has; a mask that looks at similarity removes
    the hard negatives and voids the bound.

    Args:
        scores: [..., B, M] log-scores, M >= B, already divided by the temperature; the positive
            of row i is column i.
        mask: Boolean, broadcastable to `scores`; True = this candidate takes part.

    Returns:
        [...] bounds in nats, one per leading index, float32 or float64. Negative when the critic
        is worse than chance.

    Raises:
        TypeError: If `scores` is not floating point or `mask` is not boolean.
        ValueError: If a shape does not fit or `mask` excludes a positive.

    Example:
        >>> info_nce_bound(100 * torch.eye(8)).exp().round()
        tensor(8.)
    """
    return (log_candidates(scores, mask=mask) - info_nce(scores, mask=mask)).mean(dim=-1)


def log_candidates(scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return log N_i, the loss of chance and the ceiling of the InfoNCE bound in row i.

    Args:
        scores: [..., B, M]; only the shape, dtype and device matter.
        mask: Boolean, broadcastable to `scores`; True = this candidate takes part.

    Returns:
        [..., B] in nats, >= 0, float32 or float64, without gradient.

    Raises:
        TypeError: If `scores` is not floating point or `mask` is not boolean.
        ValueError: If a shape does not fit or `mask` excludes a positive.
    """
    check_scores(scores)
    like = at_least_float32(scores[..., 0].detach())  # [..., B]
    if mask is None:
        return torch.full_like(like, math.log(scores.shape[-1]))
    return expand_mask(scores, mask).sum(dim=-1).to(like.dtype).log()
