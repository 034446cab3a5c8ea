"""Float32 arithmetic whatever autocast says, shared by losses, contrast and critics."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


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


def lengths(vectors: Tensor) -> Tensor:
    """Return the Euclidean lengths [..., 1] of vectors to divide them by, 1 for zero vectors.

    The squares of the vectors must be in range, see `in_range`. There is no epsilon: at a zero
    vector an epsilon in the denominator would multiply the gradient by its inverse; here the
    gradient passes unscaled.
    """
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return norms + (norms == 0)


def in_range(vectors: Tensor) -> Tensor:
    """Return vectors [..., D] in the same directions whose squares neither over- nor underflow.

    Each is multiplied by a power of two, a constant to its gradient: no digit of a unit vector
    changes.
    """
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    most = 1022 if vectors.dtype == torch.float64 else 126  # powers that it holds
    exponents = torch.frexp(largest).exponent.clamp(-most, most)
    return vectors * torch.ldexp(torch.ones_like(largest), -exponents)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Return the vectors [..., D] divided by their lengths, zero vectors unchanged."""
    scaled = in_range(vectors)
    # A product is cheaper to differentiate than a quotient.
    return scaled * lengths(scaled).reciprocal()
