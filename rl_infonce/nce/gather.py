"""Candidates from all processes of a distributed run."""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rl_infonce.nce._precision import at_least_float32


def gather(tensor: Tensor) -> Tensor:
    """Return the rows of all ranks, with gradients that reach the rank they came from.

    With local anchors against gathered candidates,

        contrast(anchors, gather(candidates), offset=rank * len(anchors))

    holds the losses of this rank's rows of the large batch. The backward pass sums, over the ranks,
    what each rank's loss says about the gathered rows. Hence the sum over ranks of their losses has
    exactly the gradients of the large batch, and so has the mean of their mean losses once
    DistributedDataParallel has averaged the parameters' gradients: multiply by no world size.
    Every rank must take part in the forward and the backward pass. For both directions average
    this loss with contrast(candidates, gather(anchors), offset=...).

    Args:
        tensor: [B, ...], the same shape and dtype on every rank.

    Returns:
        [world_size * B, ...] rows in the order of ranks. The tensor itself without an initialised
        process group.

    Raises:
        ValueError: If the tensor has no axis or the ranks' shapes differ.
    """
    if tensor.ndim == 0:
        raise ValueError("Expected `tensor` of shape [B, ...], got ().")
    if not (dist.is_available() and dist.is_initialized()):
        return tensor
    _check_same_shape(tensor)
    gathered: Tensor = _Gather.apply(tensor)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """All-gather, the transpose of `_SumOwnRows`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return torch.cat(_all_gather(tensor))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        """Return the gradient [B, ...] of the sum of all ranks' losses."""
        return _SumOwnRows.apply(upstream)  # type: ignore[no-untyped-call]


class _SumOwnRows(torch.autograd.Function):
    """Sum over ranks of what each holds for this rank's rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Return [B, ...] from [world_size * B, ...]."""
        # In float32: bfloat16 would round after every rank.
        total = at_least_float32(tensor).clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()].to(tensor.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        return _Gather.apply(upstream)  # type: ignore[no-untyped-call]


def _all_gather(tensor: Tensor) -> list[Tensor]:
    """Return every rank's tensor, in the order of ranks."""
    tensor = tensor.detach().contiguous()
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(received, tensor)
    return received


def _check_same_shape(tensor: Tensor) -> None:
    """Raise, on every rank, unless all have this shape: unequal gathers hang or mix rows."""
    # Shape and type as a number: equal sizes can be of other axes, or of other bytes.
    kind = zlib.crc32(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
    sizes = [tensor.ndim, len(tensor), tensor.numel(), kind]
    of_ranks = [each.tolist() for each in _all_gather(torch.tensor(sizes, device=tensor.device))]
    if any(each != sizes for each in of_ranks):
        raise ValueError(
            f"Expected the same shape and dtype of `tensor` on every rank, got axes, rows and "
            f"elements {[each[:3] for each in of_ranks]}, here {tuple(tensor.shape)} of "
            f"{tensor.dtype}. Drop the last, smaller batch."
        )
