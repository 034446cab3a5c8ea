"""Random tensors that a test can name by their seed."""

import torch
from torch import Tensor


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers in float64."""
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def random_mask(*shape: int, share: float = 0.5, seed: int = 1) -> Tensor:
    """Let each candidate take part with the chance `share`, and each positive for certain."""
    mask = torch.rand(*shape, generator=seeded(seed)) < share
    torch.diagonal(mask, dim1=-2, dim2=-1).fill_(True)
    return mask
