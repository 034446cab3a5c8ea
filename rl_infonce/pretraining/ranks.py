"""The processes that share a batch: who they are, and what they must agree in."""

from __future__ import annotations

import json
import os
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rl_infonce.nce import gather

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_POLL_SECONDS = 0.05
_WAIT = timedelta(minutes=10)  # the first one checks the frames while others wait


class Ranks(NamedTuple):
    """This process, counted from 0, among all."""

    rank: int = 0
    n_ranks: int = 1

    @classmethod
    def here(cls) -> Ranks:
        """Return what the process group says; alone without one."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def share_of(self, batch_size: int) -> int:
        """Return how many samples of a batch each rank has; all have the same."""
        if batch_size % self.n_ranks:
            raise ValueError(
                f"Expected `batch_size` to be a multiple of the {self.n_ranks} ranks, got "
                f"{batch_size}. Take {-(-batch_size // self.n_ranks) * self.n_ranks}, or another "
                "number of ranks."
            )
        return batch_size // self.n_ranks


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Be one of the ranks that torchrun asks for, if it does, on the device of this rank.

    A `ConnectionError` says that the ranks do not meet.
    """
    n_ranks = os.environ.get("WORLD_SIZE", "1")
    if int(n_ranks) == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        join_ranks("nccl" if device.type == "cuda" else "gloo", _WAIT)
    except RuntimeError as error:  # torch's own, of one that does not come
        raise ConnectionError(
            f"Expected {n_ranks} ranks to meet, got: {error} What the others say is the reason; "
            "start all ranks again."
        ) from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def join_ranks(backend: str, wait: timedelta) -> None:
    """Join the process group that torchrun describes in the environment, in any of its lives.

    torchrun's own store outlives a restart, with the addresses of the dead in it (pytorch/pytorch
    issue 135712); so the ranks of a life first agree on a name of their own for what they keep.
    They `wait` for one another that long, here and whenever all must take part.
    """
    # Its default arguments keep the group that is there when an optimizer first imports it, beyond
    # its destruction; gloo's threads, still alive as Python ends, then abort the process.
    import torch.distributed.nn  # noqa: F401

    # Not every build of torch has these.
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, n_ranks = next(rendezvous("env://", timeout=wait))
    store = PrefixStore(name_of_life(store, rank, n_ranks, wait), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=n_ranks, timeout=wait)


def name_of_life(store: Store, rank: int, n_ranks: int, wait: timedelta) -> str:
    """Return a name that the living ranks share, whatever dead ones left in the store.

    The first rank makes it up and gathers a token of every other. A rank that finds its own token
    among them has read the name of its own life. If the first rank does not answer, the error is a
    `TimeoutError`; if another one does not, the store's own.
    """
    token = uuid.uuid4().hex
    if rank == 0:
        store.set("life", token)
        tokens = [store.get(f"{token}/{other}").decode() for other in range(1, n_ranks)]
        store.set(f"{token}/tokens", " ".join(tokens))
        return token
    last = time.monotonic() + wait.total_seconds()
    while time.monotonic() < last:
        life: str = store.get("life").decode()
        store.set(f"{life}/{rank}", token)
        if store.check([f"{life}/tokens"]) and token in store.get(f"{life}/tokens").decode():
            return life
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(
        f"Expected the first of {n_ranks} ranks to answer rank {rank} within {wait}, got nothing. "
        "What it says is the reason; start all ranks again."
    )


def mean_over_ranks(values: Tensor) -> Tensor:
    """Return the mean of a tensor over ranks, equal on all of them."""
    if Ranks.here().n_ranks == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def check_same_on_ranks(numbers: Mapping[str, int], device: torch.device) -> None:
    """Raise, on every rank, unless all ranks have the same numbers.

    The numbers have the same names on every rank; the process group takes tensors from `device`.
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
    """Raise a `ConnectionError` where another rank stopped or hangs, and let other errors pass."""
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
