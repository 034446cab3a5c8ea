"""The processes that share a batch: who they are, and what they must agree in."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rl_infonce.nce import gather

__all__ = [
    "Ranks",
    "check_same_on_ranks",
    "checksum",
    "mean_over_ranks",
    "naming_lost_ranks",
]


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


def check_same_on_ranks(numbers: Mapping[str, int], device: torch.device) -> None:
    """Raise, on every rank, unless all ranks have the same numbers.

    Args:
        numbers: What they stand for to the numbers, the same keys on every rank.
        device: Where the process group takes tensors from.

    Raises:
        ValueError: If they differ.
    """
    own = torch.tensor([list(numbers.values())], device=device)
    for name, of_ranks in zip(numbers, gather(own).T.tolist(), strict=True):
        others = [rank for rank, number in enumerate(of_ranks) if number != of_ranks[0]]
        if others:
            raise ValueError(
                f"Expected the same {name} on every rank, got on rank 0 others than on {others}. "
                "Give every rank the same arguments, frames and seed of the weights, and a folder "
                "that all of them see."
            )


def checksum(parts: Iterable[Any]) -> int:
    """Return 32 bits that differ, but for chance, where tensors, arrays or JSON values do."""
    found = 0
    for part in parts:
        if isinstance(part, Tensor):
            content = part.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        elif isinstance(part, np.ndarray):
            content = part.tobytes()
        else:
            content = json.dumps(part, sort_keys=True, default=str).encode()
        found = zlib.crc32(content, found)
    return found


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """Tell a rank that stopped or hangs from other errors.

    Raises:
        ConnectionError: If another rank did not take part in what all must.
    """
    try:
        yield
    except RuntimeError as error:
        # gloo has no error of its own, only its source file in the message
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        ranks = Ranks.here()
        raise ConnectionError(
            f"Expected all {ranks.n_ranks} ranks to go on, but another one than rank {ranks.rank} "
            f"stopped or did not answer in time; what it says is the reason. Start again to go on "
            f"from the last checkpoint. ({error})"
        ) from error
