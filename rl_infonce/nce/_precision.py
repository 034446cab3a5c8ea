"""Float32 arithmetic whatever autocast says, shared by losses, contrast and critics."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["at_least_float32", "autocast_off", "unit_vectors"]


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return half and bfloat16 tensors as float32; float32 and float64 stay as they are."""
    if tensor.dtype == torch.float32:
        return tensor
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def autocast_off(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which autocast leaves operations on the tensor's device alone.

    CPU autocast runs even `logsumexp` in bfloat16, whose grid near log(64) is 0.03 nats wide.
    """
    device_type = tensor.device.type
    if not torch.is_autocast_enabled(device_type):
        return nullcontext()  # entering torch's context costs a tenth of a small loss
    return torch.autocast(device_type=device_type, enabled=False)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Return vectors divided by their Euclidean lengths, zero vectors unchanged.

    No epsilon: at a zero vector an epsilon in the denominator would multiply the gradient by its
    inverse, here the gradient passes unscaled.

    Args:
        vectors: [..., D] float32 or float64, of any finite length.

    Returns:
        [..., D].
    """
    # squares of 1e20 and of 1e-25 are not in float32; as a constant, this factor cancels
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    scaled = vectors / (largest + (largest == 0))
    norms = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    # A product is cheaper to differentiate than a quotient.
    units: Tensor = scaled * (norms + (norms == 0)).reciprocal()
    return units
