"""How often a critic finds the positive."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_infonce.nce._candidates import (
    allowed_scores,
    check_scores,
    expand_mask,
    positives_of,
    warn_of_rows,
)


def retrieval_accuracy(
    scores: Tensor, *, mask: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Return whether the positive has the best score of its row, ties shared.

    Top-1 accuracy over the same axis as `info_nce`. An argmax would give a collapsed critic, whose
    scores are all equal, whatever the argmax's order happens to favour; here it gives chance.

    Args:
        scores: [..., B, M], M >= B; the positive of row i is column i.
        mask: Boolean, broadcastable to `scores`; True = this candidate takes part.
        validate_args: Whether to check that the mask allows positives, which waits for the device.

    Returns:
        [..., B] accuracies without gradient: 1 if the positive alone is best, 1/n if it shares the
        best score with n - 1 others, else 0 (also for a NaN score or a row without candidates,
        which a warning names).

    Example:
        >>> retrieval_accuracy(torch.tensor([[2.0, 2.0, 1.0], [0.0, 5.0, 1.0]]))
        tensor([0.5000, 1.0000])
    """
    check_scores(scores)
    if mask is not None and validate_args:
        warn_of_rows("no candidate", ~positives_of(expand_mask(scores, mask)), "accuracy")
    allowed, used = allowed_scores(scores, mask, validate_args=False)  # [..., B, M]
    best = allowed.amax(dim=-1)  # [..., B]
    n_best = (allowed == best.unsqueeze(-1)).sum(dim=-1)  # [..., B]
    found = used & (positives_of(allowed) == best)  # [..., B]
    return torch.where(found, n_best.to(best.dtype).reciprocal(), 0.0)
