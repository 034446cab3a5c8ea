"""The processes that share a batch."""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

__all__ = ["Ranks", "mean_over_ranks"]


class Ranks(NamedTuple):
    """This process among all.

    Attributes:
        rank: From 0.
        n_ranks: At least 1.
    """

    rank: int = 0
    n_ranks: int = 1

    @classmethod
    def here(cls) -> Ranks:
        """Return what the process group says; alone without one."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()


def mean_over_ranks(values: Tensor) -> Tensor:
    """Return the mean of a tensor over ranks, equal on all of them."""
    if Ranks.here().n_ranks == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
