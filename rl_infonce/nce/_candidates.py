"""What every estimator asks of `scores` and `mask`: positives on the diagonal, all allowed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_infonce.checks import check_shape
from rl_infonce.nce._precision import at_least_float32

__all__ = ["allowed_scores", "check_scores", "expand_mask"]


def check_scores(scores: Tensor) -> None:
    """Raise unless `scores` is floating point of shape [..., B, M] with 1 <= B <= M.

    Raises:
        TypeError: If `scores` is not floating point.
        ValueError: If an axis is missing, there is no row, or a row has no column for its positive.
    """
    check_shape("scores", scores, ["...", "B", "M"])
    if not scores.is_floating_point():
        raise TypeError(f"Expected `scores` to be floating point, got {scores.dtype}.")
    if not 1 <= scores.shape[-2] <= scores.shape[-1]:
        raise ValueError(
            f"Expected `scores` [..., B, M] with 1 <= B <= M, got {tuple(scores.shape)}."
        )


def expand_mask(scores: Tensor, mask: Tensor) -> Tensor:
    """Return `mask` in the shape of `scores` after checking that it allows every positive.

    Args:
        scores: [..., B, M].
        mask: Boolean, broadcastable to `scores`; True = this candidate takes part.

    Returns:
        [..., B, M] boolean view.

    Raises:
        TypeError: If `mask` is not boolean.
        ValueError: If `mask` does not broadcast to `scores` or excludes a positive.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"Expected a boolean `mask`, got {mask.dtype}.")
    try:
        allowed = mask.expand(scores.shape)  # [..., B, M]
    except RuntimeError:
        raise ValueError(
            f"Expected `mask` broadcastable to `scores` {tuple(scores.shape)}, "
            f"got {tuple(mask.shape)}."
        ) from None
    positives = torch.diagonal(allowed, dim1=-2, dim2=-1)  # [..., B]
    if not bool(positives.all()):
        n_excluded = int((~positives).sum())
        raise ValueError(
            f"Expected `mask` to allow the positive (column i of row i) of every row, "
            f"got {n_excluded} of {positives.numel()} rows without it."
        )
    return allowed


def allowed_scores(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return checked scores in at least float32, -inf where a candidate takes no part.

    The scores arrive already divided by the temperature: a temperature applied to -inf would
    receive a NaN gradient.

    Args:
        scores: [..., B, M].
        mask: Boolean, broadcastable to `scores`, or None for all candidates.

    Returns:
        [..., B, M].
    """
    check_scores(scores)
    if mask is None:
        return at_least_float32(scores)
    return at_least_float32(scores).masked_fill(~expand_mask(scores, mask), -math.inf)
