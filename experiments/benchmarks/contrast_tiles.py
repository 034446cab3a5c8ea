"""How large the tiles of `contrast` should be on a device: all scores at once, or tiles of a side.

Embeddings [N, 128] in float32, dot products, the mean loss, forward and backward; milliseconds, the
median of several measurements after an untimed one. Three matrix products of N^2 times 128
multiply-adds, in blocks of 4,096 rows, are the least that scores and gradients take.

    python experiments/benchmarks/contrast_tiles.py --output experiments/results/contrast_tiles.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from contrast_speed import DIM
from output import finish, machine
from torch import Tensor

from rl_infonce.device import hardware_name, usable_device
from rl_infonce.nce import contrast
from rl_infonce.report.table import markdown_table

SIZES = (1024, 2048, 4096, 8192, 16384, 65536)
SIDES = (1024, 2048, 4096, 8192, 16384)
LARGEST_AT_ONCE = 16384
"""Largest N whose scores are held at once here: three matrices of them take 3 GB."""

MOST_BLOCKS = 64
"""Tiles along one side, at most."""

FORMS = {"one way": False, "symmetric": True}


def milliseconds(work: Callable[[], object], device: torch.device, n_rounds: int) -> float:
    """Return the median time of some work, after an untimed round."""
    times = []
    for _ in range(n_rounds + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def one_loss(anchors: Tensor, candidates: Tensor, *, symmetric: bool, tile: int | None) -> None:
    """Compute the loss and its gradients."""
    anchors.grad = candidates.grad = None
    losses = contrast(anchors, candidates, symmetric=symmetric, tile=tile, validate_args=False)
    losses.mean().backward()  # type: ignore[no-untyped-call]


def products(anchors: Tensor, candidates: Tensor) -> None:
    """Multiply as scores and both gradients do, in blocks that fit any memory."""
    with torch.no_grad():
        for rows in torch.split(anchors, 4096):
            scores = rows @ candidates.T
            scores @ candidates
            scores.T @ rows


def sides(n: int) -> list[int | None]:
    """Return the sides of tiles to try at batch size N; None is for all scores at once."""
    tried: list[int | None] = [None] if n <= LARGEST_AT_ONCE else []
    return tried + [side for side in SIDES if side <= n <= MOST_BLOCKS * side]


def measure(device: torch.device, sizes: tuple[int, ...], n_rounds: int) -> dict[str, Any]:
    """Return milliseconds by N, form and side, and what they were measured on."""
    found: dict[str, Any] = {}
    for n in sizes:
        generator = torch.Generator(device).manual_seed(0)
        anchors, candidates = (
            torch.randn(n, DIM, generator=generator, device=device).mul_(0.3).requires_grad_()
            for _ in range(2)
        )
        entry: dict[str, Any] = {
            "products": milliseconds(partial(products, anchors, candidates), device, n_rounds)
        }
        for form, symmetric in FORMS.items():
            entry[form] = {}
            for side in sides(n):
                work = partial(one_loss, anchors, candidates, symmetric=symmetric, tile=side)
                entry[form][str(side or "none")] = milliseconds(work, device, n_rounds)
        found[str(n)] = entry
    return {"machine": machine(device=hardware_name(device)), "ms": found}


def table(summary: Mapping[str, Any]) -> str:
    """Return the milliseconds in Markdown."""
    columns = ["none", *map(str, SIDES)]
    titles = ["all at once", *(f"{side:,}" for side in SIDES)]
    rows = []
    for n, entry in summary["ms"].items():
        for form in FORMS:
            cells = [rounded(entry[form].get(column)) for column in columns]
            rows.append([f"{int(n):,}", form, rounded(entry["products"]), *cells])
    return markdown_table(["N", "form", "three products", *titles], rows)


def rounded(ms: float | None) -> str:
    """Return milliseconds in three digits, or a dash for none."""
    if ms is None:
        return "-"
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:#.3g}"


def main() -> None:
    """Parse, measure, print, and write the JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="batch sizes")
    parser.add_argument("--rounds", type=int, default=5, help="timed measurements of each")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    summary = measure(usable_device(args.device), tuple(args.sizes), args.rounds)
    finish(summary, args.output, table(summary))


if __name__ == "__main__":
    main()
