"""The gradient of a batch: encoded at once, or in parts with the same result."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_infonce.nce import gather
from rl_infonce.pretraining.base_objective import (
    Encoded,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
)
from rl_infonce.pretraining.ranks import Ranks, mean_over_ranks


@torch.no_grad()
def evaluate(
    objective: PretrainingObjective, batch: FrameBatch, *, half: bool, part: int
) -> PretrainingLoss:
    """Return the loss of a batch; the batch of all ranks, where samples are contrasted.

    With `half`, encoders run in bfloat16, and so do losses without contrasts: decoders, classifiers
    and JSD-ST-DIM's predictors. Losses that contrast the batch are always in float32. `part`
    samples are encoded at a time.
    """
    return _loss(objective, _encode_in_parts(objective, batch, half, part), batch, half)


def backward(
    objective: PretrainingObjective, batch: FrameBatch, *, half: bool, part: int
) -> PretrainingLoss:
    """Add the gradient of a batch to the parameters and return its loss, detached.

    With fewer than B samples per part, each part is encoded twice: first all without a graph, which
    gives the loss and its gradient at the encoded samples, then one part after the other to carry
    that gradient on (gradient caching, Gao et al. 2021). The gradient is the same but for rounding,
    in the memory of one part.
    """
    if part >= len(batch.images):
        with _autocast(batch.images, half):
            encoded = objective.encode(batch.images)
        found = _loss(objective, encoded, batch, half)
        found.loss.backward()  # type: ignore[no-untyped-call]
        return PretrainingLoss(found.loss.detach(), found.accuracy)
    with torch.no_grad():
        whole = _encode_in_parts(objective, batch, half, part)
    leaves = tuple(each.float().requires_grad_() for each in whole)
    found = _loss(objective, leaves, batch, half)
    found.loss.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.split(_gradient(leaf), part) for leaf in leaves]
    for index, images in enumerate(torch.split(batch.images, part)):
        with _autocast(batch.images, half):
            encoded = objective.encode(images)
        torch.autograd.backward(
            encoded, [each[index].to(t.dtype) for each, t in zip(gradients, encoded, strict=True)]
        )
    return PretrainingLoss(found.loss.detach(), found.accuracy)


def average_gradients_(objective: PretrainingObjective) -> float:
    """Replace every gradient by its mean over ranks and return the norm of all together.

    A loss that is not finite on any rank gives a norm that is not finite on every rank.
    """
    if Ranks.here().n_ranks > 1:
        for parameter in objective.parameters():
            parameter.grad = mean_over_ranks(_gradient(parameter))
    gradients = [p.grad for p in objective.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def _encode_in_parts(
    objective: PretrainingObjective, batch: FrameBatch, half: bool, part: int
) -> Encoded:
    with _autocast(batch.images, half):
        parts = [objective.encode(images) for images in torch.split(batch.images, part)]
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def _loss(
    objective: PretrainingObjective, encoded: Encoded, batch: FrameBatch, half: bool
) -> PretrainingLoss:
    encoded = tuple(each.float() for each in encoded)
    if objective.contrasts:
        encoded = tuple(gather(each) for each in encoded)
    with _autocast(batch.images, half and not objective.contrasts):
        return objective.loss(encoded, batch)


def _autocast(images: Tensor, half: bool) -> torch.autocast:
    return torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=half)


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
