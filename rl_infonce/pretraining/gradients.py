"""The gradient of a batch: encoded at once, or in parts with the same result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rl_infonce.nce import gather
from rl_infonce.pretraining.objective import (
    Encoded,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
)

__all__ = ["average_over_ranks_", "backward", "evaluate"]


def evaluate(objective: PretrainingObjective, batch: FrameBatch, *, half: bool) -> PretrainingLoss:
    """Return the loss of a batch; the batch of all ranks, where samples are contrasted.

    Args:
        objective: In training or evaluation mode.
        batch: Of this rank.
        half: Whether convolutions run in bfloat16; scores of contrasts never do.
    """
    with autocast(batch.images, half):
        encoded = objective.encode(batch.images)
    return _loss(objective, encoded, batch, half)


def backward(
    objective: PretrainingObjective, batch: FrameBatch, *, half: bool, part: int
) -> PretrainingLoss:
    """Add the gradient of a batch to the parameters and return its loss, detached.

    With fewer than B samples per part, each part is encoded twice: first all without a graph, which
    gives the loss and its gradient at the encoded samples, then one part after the other to carry
    that gradient on (gradient caching, Gao et al. 2021). The same gradient but for rounding, in
    the memory of one part.

    Args:
        objective: In training mode.
        batch: Of this rank.
        half: Whether convolutions run in bfloat16.
        part: Samples to encode at a time, at least 1.

    Raises:
        FloatingPointError: If the loss is not finite; nothing was added then.
    """
    n_samples = len(batch.images)
    if part >= n_samples:
        found = evaluate(objective, batch, half=half)
        _check_finite(found.loss)
        found.loss.backward()  # type: ignore[no-untyped-call]
        return PretrainingLoss(found.loss.detach(), found.accuracy)
    parts = torch.split(batch.images, part)
    with torch.no_grad(), autocast(batch.images, half):
        encoded_parts = [objective.encode(images) for images in parts]
    leaves = tuple(
        torch.cat(each).float().requires_grad_() for each in zip(*encoded_parts, strict=True)
    )
    found = _loss(objective, leaves, batch, half)
    _check_finite(found.loss)
    found.loss.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.split(_gradient(leaf), part) for leaf in leaves]
    for index, images in enumerate(parts):
        with autocast(batch.images, half):
            encoded = objective.encode(images)
        torch.autograd.backward(
            encoded, [each[index].to(t.dtype) for each, t in zip(gradients, encoded, strict=True)]
        )
    return PretrainingLoss(found.loss.detach(), found.accuracy)


def average_over_ranks_(module: nn.Module) -> None:
    """Replace every gradient by its mean over ranks; without a process group, do nothing."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    for parameter in module.parameters():
        gradient = _gradient(parameter)
        dist.all_reduce(gradient)
        parameter.grad = gradient / dist.get_world_size()


@contextlib.contextmanager
def autocast(images: Tensor, half: bool) -> Iterator[None]:
    """Run what autocast covers in bfloat16."""
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=half):
        yield


def _loss(
    objective: PretrainingObjective, encoded: Encoded, batch: FrameBatch, half: bool
) -> PretrainingLoss:
    encoded = tuple(each.float() for each in encoded)
    if objective.contrasts:
        encoded = tuple(gather(each) for each in encoded)
    with autocast(batch.images, half and not objective.contrasts):
        return objective.loss(encoded, batch)


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _check_finite(loss: Tensor) -> None:
    if not bool(torch.isfinite(loss)):
        raise FloatingPointError(f"Expected a finite loss, got {loss.item()}.")
