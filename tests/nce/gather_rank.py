"""One rank of the run that test_gather.py compares with a single process.

python -m tests.nce.gather_rank RANK WORLD_SIZE DIRECTORY
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rl_infonce.nce import contrast, gather

N_ROWS = 6  # of each rank


def batch(n_ranks: int) -> dict[str, Tensor]:
    """The large batch; every rank draws all of it and keeps its own rows."""
    generator = torch.Generator().manual_seed(0)
    n_rows = n_ranks * N_ROWS
    draw = torch.randn(3, n_rows, 5, generator=generator, dtype=torch.float64)
    return {
        "anchors": draw[0],
        "candidates": draw[1],
        "upstream": draw[2, :, 0],
        "episodes": torch.arange(n_rows) // 4,
        "times": torch.arange(n_rows) % 4,
    }


def one_way(anchors: Tensor, candidates: Tensor, labels: dict[str, Any]) -> Tensor:
    """Losses of this rank's rows, with gathered candidates and labels."""
    offset = dist.get_rank() * len(anchors)
    labels = {name: gather(of_rank) for name, of_rank in labels.items()}
    return contrast(anchors, gather(candidates), offset=offset, min_gap=2, tile=4, **labels)


def both_ways(anchors: Tensor, candidates: Tensor, labels: dict[str, Tensor]) -> Tensor:
    """The symmetric losses of this rank's rows."""
    return (one_way(anchors, candidates, labels) + one_way(candidates, anchors, labels)) / 2


def run_rank(rank: int, n_ranks: int) -> dict[str, Tensor]:
    """Return losses, gradients and what else this rank saw."""
    own = {name: rows.chunk(n_ranks)[rank].clone() for name, rows in batch(n_ranks).items()}
    sides = own["anchors"].requires_grad_(), own["candidates"].requires_grad_()
    labels = {"episodes": own["episodes"], "times": own["times"]}
    seen = {"gathered_episodes": gather(own["episodes"])}
    losses_of: dict[str, Callable[..., Tensor]] = {"one_way": one_way, "both_ways": both_ways}
    for name, losses_with in losses_of.items():
        losses = losses_with(*sides, labels)
        gradients = torch.autograd.grad(losses, sides, own["upstream"])
        seen |= {name: losses.detach(), f"{name}_anchors": gradients[0]}
        seen[f"{name}_candidates"] = gradients[1]
    seen["half"] = half_gradient(rank)
    seen["second"] = second_derivative(rank)
    seen["refused"] = refused(rank)
    return seen


def half_gradient(rank: int) -> Tensor:
    """The bfloat16 gradient of a row that the ranks weigh 256, 1 and 1: bfloat16 sums give 256."""
    row = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    weight = 256.0 if rank == 0 else 1.0
    (gradient,) = torch.autograd.grad((gather(row) * weight).sum(), row)
    return gradient


def second_derivative(rank: int) -> Tensor:
    """d/dx of (sum over ranks of d/dx x^3 / 3)."""
    row = torch.full((1, 1), 3.0, requires_grad=True)
    (slope,) = torch.autograd.grad((gather(row) ** 3).sum() / 3, row, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), row)
    return curvature


def refused(rank: int) -> Tensor:
    """Whether ranks with different numbers of rows, axes of one size, or types are told so."""
    shapes = [(4, 2, 6), (4, 3, 4), (4, 4, 3)]
    types = [torch.float32, torch.float64, torch.float32]
    named = {
        "[[2, 2, 6], [2, 3, 9], [2, 4, 12]]": torch.zeros(2 + rank, 3),
        f"here {shapes[rank]} of torch.float32": torch.zeros(shapes[rank]),
        f"here (2, 3) of {types[rank]}": torch.zeros(2, 3, dtype=types[rank]),
    }
    for words, tensor in named.items():
        try:
            gather(tensor)
        except ValueError as error:
            if words not in str(error):
                return torch.tensor(False)
        else:
            return torch.tensor(False)
    return torch.tensor(True)


def main(rank: int, n_ranks: int, directory: Path) -> None:
    """Join the others, run and leave the result in `directory`."""
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=n_ranks
    )
    torch.save(run_rank(rank, n_ranks), directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
