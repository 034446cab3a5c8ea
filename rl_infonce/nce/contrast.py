"""InfoNCE straight from embeddings."""

from __future__ import annotations

from torch import Tensor

from rl_infonce.checks import check_number, check_shape
from rl_infonce.nce._precision import at_least_float32, autocast_off, unit_vectors
from rl_infonce.nce.losses import info_nce, symmetric_info_nce

__all__ = ["contrast"]


def contrast(
    anchors: Tensor,
    candidates: Tensor,
    *,
    scale: float | Tensor = 1.0,
    symmetric: bool = False,
    mask: Tensor | None = None,
    normalize: bool = False,
) -> Tensor:
    """Return the InfoNCE loss of each anchor against embedded candidates.

    The scores are scale * anchors @ candidates.T, computed in at least float32: bfloat16 products
    near 100 lie 0.5 apart. See `info_nce` and `symmetric_info_nce` for the losses. Holds all
    [B, M] scores in memory.

    Args:
        anchors: [B, D].
        candidates: [M, D], M >= B; candidate i is the positive of anchor i.
        scale: One over the temperature, > 0; a 0-dim tensor receives a gradient and its sign is
            the caller's duty.
        symmetric: Whether to average with the loss of candidates picking anchors; needs M = B.
        mask: Boolean, broadcastable to [B, M]; True = this candidate takes part.
        normalize: Whether to divide anchors and candidates by their length, so that scores are
            scaled cosines. A zero vector scores 0.

    Returns:
        [B] losses in nats, >= 0, float32 or float64.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a shape does not fit, `scale` is not positive or `mask` excludes a positive.

    Example:
        >>> import torch
        >>> contrast(torch.eye(3), torch.eye(3), scale=2.0)
        tensor([0.2395, 0.2395, 0.2395])
    """
    check_shape("anchors", anchors, ["B", "D"])
    check_shape("candidates", candidates, ["M", anchors.shape[1]])
    if symmetric and len(candidates) != len(anchors):
        raise ValueError(
            f"Expected as many `candidates` as `anchors` with `symmetric`, "
            f"got {len(candidates)} and {len(anchors)}."
        )
    _check_scale(scale)
    with autocast_off(anchors):
        anchors, candidates = at_least_float32(anchors), at_least_float32(candidates)
        if normalize:
            anchors, candidates = unit_vectors(anchors), unit_vectors(candidates)
        scores = scale * (anchors @ candidates.T)  # [B, M]
    loss = symmetric_info_nce if symmetric else info_nce
    return loss(scores, mask=mask)


def _check_scale(scale: float | Tensor) -> None:
    """Raise unless `scale` is a positive number or a 0-dim tensor, whose value is not read."""
    if not isinstance(scale, Tensor):
        check_number("scale", scale, above=0.0)
    elif scale.ndim != 0:
        raise ValueError(f"Expected a 0-dim `scale`, got a tensor of shape {tuple(scale.shape)}.")
