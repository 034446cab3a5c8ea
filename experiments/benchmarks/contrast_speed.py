"""Time and memory of the InfoNCE loss with its gradients, beside other implementations.

Embeddings [N, 128] in float32, cosines at temperature 0.1, the mean loss, forward and backward, two
torch threads. The arms take turns in one process; a round times each arm once. The ratios are taken
within a round against the arm of the same kind: one way `info-nce-pytorch`, both ways a loss of two
matrix products and two cross entropies (the CLIP form). `NTXentLoss` of pytorch-metric-learning
masks [N, N^2] pairs and is timed at the smallest N only; with two labels per class it contrasts
also within each side, so its value differs. `linear_cross_entropy` needs torch 2.13. Memory is what
loss and gradients add to a process of their own that already holds the embeddings.

    pip install info-nce-pytorch pytorch-metric-learning
    python experiments/benchmarks/contrast_speed.py --output experiments/results/contrast_speed.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from output import finish, machine
from torch import Tensor

from rl_infonce.nce import contrast
from rl_infonce.report.table import markdown_table

DIM, TEMPERATURE = 128, 0.1
Loss = Callable[[Tensor, Tensor], Tensor]


def ours(symmetric: bool) -> Loss:
    """Return this package's loss with its default tiles."""

    def loss(anchors: Tensor, candidates: Tensor) -> Tensor:
        return contrast(
            anchors, candidates, scale=1 / TEMPERATURE, symmetric=symmetric, normalize=True
        ).mean()

    return loss


def info_nce_pytorch() -> Loss:
    """Return the loss of info-nce-pytorch: one way, all scores at once."""
    loss: Loss = _peer("info_nce", "info-nce-pytorch").InfoNCE(temperature=TEMPERATURE)
    return loss


def metric_learning() -> Loss:
    """Return NTXentLoss of pytorch-metric-learning, row i of both sides being one class."""
    losses = _peer("pytorch_metric_learning.losses", "pytorch-metric-learning")
    nt_xent = losses.NTXentLoss(temperature=TEMPERATURE)

    def loss(anchors: Tensor, candidates: Tensor) -> Tensor:
        labels = torch.arange(len(anchors), device=anchors.device)
        total: Tensor = nt_xent(torch.cat([anchors, candidates]), torch.cat([labels, labels]))
        return total

    return loss


def two_products(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Return the CLIP form: a product and a cross entropy for each direction."""
    anchors, candidates = F.normalize(anchors, dim=-1), F.normalize(candidates, dim=-1)
    positives = torch.arange(len(anchors), device=anchors.device)
    of_anchors = F.cross_entropy(anchors @ candidates.T / TEMPERATURE, positives)
    of_candidates = F.cross_entropy(candidates @ anchors.T / TEMPERATURE, positives)
    return (of_anchors + of_candidates) / 2


def linear_cross_entropy(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Return torch's chunked loss, one way, with its own choice of chunks."""
    anchors, candidates = F.normalize(anchors, dim=-1), F.normalize(candidates, dim=-1)
    positives = torch.arange(len(anchors), device=anchors.device)
    loss: Tensor = F.linear_cross_entropy(anchors / TEMPERATURE, candidates, positives)
    return loss


def _peer(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SystemExit(
            f"Expected the package {package} to compare with, got: {error}. "
            f"Run: pip install {package}"
        ) from error


def arms(n: int, smallest: int) -> dict[str, Loss]:
    """Return the losses to time at batch size `n`, by name."""
    chosen: dict[str, Loss] = {
        "ours, one way": ours(symmetric=False),
        "info-nce-pytorch": info_nce_pytorch(),
    }
    if hasattr(F, "linear_cross_entropy"):
        chosen["linear_cross_entropy"] = linear_cross_entropy
    chosen |= {"ours, symmetric": ours(symmetric=True), "two products": two_products}
    if n == smallest:
        chosen["NTXentLoss"] = metric_learning()
    return chosen


BASELINES = {
    "ours, one way": "info-nce-pytorch",
    "info-nce-pytorch": "info-nce-pytorch",
    "linear_cross_entropy": "info-nce-pytorch",
    "NTXentLoss": "info-nce-pytorch",
    "ours, symmetric": "two products",
    "two products": "two products",
}


def time_once(loss: Loss, anchors: Tensor, candidates: Tensor, repeats: int) -> float:
    """Return milliseconds of one loss with its gradients, the mean over `repeats`."""
    start = time.perf_counter()
    for _ in range(repeats):
        anchors.grad = candidates.grad = None
        loss(anchors, candidates).backward()  # type: ignore[no-untyped-call]
    return 1000 * (time.perf_counter() - start) / repeats


def alternate(losses: dict[str, Loss], n: int, rounds: int) -> list[dict[str, float]]:
    """Return the milliseconds of every arm in every round, after one untimed round."""
    generator = torch.Generator().manual_seed(0)
    anchors, candidates = (
        torch.randn(n, DIM, generator=generator).requires_grad_() for _ in range(2)
    )
    # About 50 ms per measurement at small N, where the clock and the scheduler would show.
    trial = {name: time_once(loss, anchors, candidates, 1) for name, loss in losses.items()}
    repeats = {name: max(1, min(100, int(50 / once))) for name, once in trial.items()}
    runs = []
    for index in range(rounds):
        order = list(losses) if index % 2 == 0 else list(losses)[::-1]
        run = {name: time_once(losses[name], anchors, candidates, repeats[name]) for name in order}
        runs.append({name: run[name] for name in losses})
    return runs


def compare(sizes: Sequence[int], rounds: int, memory_size: int) -> dict[str, Any]:
    """Time all arms at all sizes and measure memory; return every run and the medians."""
    times = {}
    for n in sizes:
        runs = alternate(arms(n, min(sizes)), n, rounds)
        times[str(n)] = {"median": medians(runs), "runs": runs}
        print(n, json.dumps(times[str(n)]["median"]), file=sys.stderr, flush=True)
    memory = {
        name: memory_in_process(name, memory_size) for name in ("ours, one way", "ours, symmetric")
    }
    return {
        "dim": DIM,
        "temperature": TEMPERATURE,
        "rounds": rounds,
        "machine": machine(matmul_gflop_per_second=matmul_speed(), device="cpu"),
        "times": times,
        "memory": {"size": memory_size, "extra_mb": memory},
    }


def medians(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return each arm's median milliseconds and its median speed relative to its baseline."""
    found = {}
    for name in runs[0]:
        ratios = [run[BASELINES[name]] / run[name] for run in runs]
        found[name] = {
            "ms": statistics.median(run[name] for run in runs),
            "speed_ratio": statistics.median(ratios),
            "lowest_ratio": min(ratios),
            "highest_ratio": max(ratios),
        }
    return found


def memory_in_process(name: str, n: int) -> float:
    """Run `extra_memory` in a fresh interpreter."""
    command = [sys.executable, __file__, "--memory-arm", name, "--memory-size", str(n)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(finished.stdout.splitlines()[-1])


def extra_memory(name: str, n: int) -> float:
    """Return by how many MB one loss with its gradients raises the peak of this process."""
    loss = ours(symmetric=name == "ours, symmetric")
    small = torch.ones(2, DIM, requires_grad=True)
    time_once(loss, small, small, 1)  # loads the libraries
    generator = torch.Generator().manual_seed(0)
    anchors, candidates = (
        torch.randn(n, DIM, generator=generator).requires_grad_() for _ in range(2)
    )
    before = resident("VmRSS")
    time_once(loss, anchors, candidates, 1)
    return (resident("VmHWM") - before) / 1e6


def resident(field: str) -> int:
    """Return bytes of memory held now (VmRSS) or at most so far (VmHWM); Linux only.

    getrusage's ru_maxrss would start at the peak of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def table(summary: dict[str, Any]) -> str:
    """Return the medians in Markdown: milliseconds and, in brackets, speed relative to a peer."""
    names = list(dict.fromkeys(n for each in summary["times"].values() for n in each["median"]))
    rows = [
        [f"{int(n):,}", *(_cell(each["median"].get(name)) for name in names)]
        for n, each in summary["times"].items()
    ]
    return markdown_table(["N", *names], rows)


def _cell(median: dict[str, float] | None) -> str:
    if median is None:
        return "-"
    ratio = median["speed_ratio"]
    return f"{median['ms']:,.2f} ms ({ratio:.2f}x)" if ratio >= 0.01 else f"{median['ms']:,.0f} ms"


def memory_table(summary: dict[str, Any]) -> str:
    """Return, in Markdown, what loss and gradients add to the peak memory of a process."""
    n = summary["memory"]["size"]
    rows = [
        [name, f"{extra:.0f} MB", f"{4 * n * n / 1e6:.0f} MB"]
        for name, extra in summary["memory"]["extra_mb"].items()
    ]
    return markdown_table([f"loss at N = {n:,}", "extra peak memory", "one matrix of scores"], rows)


def limits_table(summary: dict[str, Any]) -> str:
    """Return, in Markdown, how far our losses are from the least time their products could take.

    Scores and both gradients are three products of N^2 D multiply-adds each.
    """
    speed = 1e6 * summary["machine"]["matmul_gflop_per_second"]  # FLOP per ms
    names, rows = ("ours, one way", "ours, symmetric"), []
    for n, each in summary["times"].items():
        least = 3 * 2 * int(n) ** 2 * summary["dim"] / speed
        cells = [f"{each['median'][name]['ms'] / least:.1f}x" for name in names]
        rows.append([f"{int(n):,}", f"{least:,.2f} ms", *cells])
    return markdown_table(["N", "three products", *names], rows)


def matmul_speed(dtype: torch.dtype = torch.float32) -> float:
    """Return GFLOP/s of a square matrix product in a number format, the best of five."""
    size = 2048
    a, b = torch.rand(2, size, size, dtype=dtype)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds) / 1e9


def main() -> None:
    """Parse, measure, print, and write the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096, 8192])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-size", type=int, default=32768)
    parser.add_argument("--memory-arm", choices=BASELINES, help="measure memory in this process")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_arm is not None:
        print(extra_memory(args.memory_arm, args.memory_size))
        return
    summary = compare(args.sizes, args.rounds, args.memory_size)
    finish(summary, args.output, table(summary), limits_table(summary), memory_table(summary))


if __name__ == "__main__":
    main()
