"""Do several ranks train what one process trains on the same batches?

Trains every objective on noise in one process, and with 2 and 4 gloo ranks that share the very
same batches, started by torchrun on this machine with one thread each. Compares the losses of every
step, the gradients of the first and the last step, and the last weights. Two controls say what
rounding alone does in one process: the batch encoded in as many parts, and bf16 instead of fp32.

    python experiments/distributed.py --output experiments/results/distributed.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_infonce.device import processor_name
from rl_infonce.pretraining import OBJECTIVES
from rl_infonce.report.table import markdown_table
from rl_infonce.runs.software import software

N_RANKS = (2, 4)
PRECISIONS = ("fp32", "bf16")
IN_PARTS = "1 in parts"
CONTROLS = {"fp32": "fp32, in parts", "bf16": "bf16 for fp32"}
QUANTITIES = ("loss", "first gradient", "last gradient", "weight")


def run_ranks(n_ranks: int, folder: Path, *flags: str) -> None:
    """Run distributed_rank.py under torchrun; files go to the folder, which is made."""
    folder.mkdir(parents=True)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks))
    script = str(Path(__file__).with_name("distributed_rank.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *launcher, script, str(folder), *flags]
    subprocess.run(command, env=environment, check=True)


def read(folder: Path, name: str, precision: str, rank: int = 0) -> dict[str, Any]:
    """Return what a rank saw."""
    seen: dict[str, Any] = torch.load(folder / f"{name}-{precision}-{rank}.pt")
    return seen


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest differences of losses, gradients and weights.

    Losses relative to themselves, or to 1 where they are smaller; gradients as the norm of a
    parameter's difference relative to the norm of its gradient, or to a hundredth of the whole
    gradient's where it is smaller: some are zero but for rounding. Weights as such.
    """
    pairs = [
        pair
        for part in ("train_losses", "validation_losses")
        for pair in zip(expected[part], found[part], strict=True)
    ]
    gradients = [
        gradient_difference(a, b)
        for a, b in zip(expected["gradients"], found["gradients"], strict=True)
    ]
    weights = [
        float((tensor - found["weights"][key]).abs().max())
        for key, tensor in expected["weights"].items()
    ]
    loss = max(abs(a - b) / max(abs(a), 1.0) for a, b in pairs)
    return dict(zip(QUANTITIES, (loss, *gradients, max(weights)), strict=True))


def gradient_difference(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> float:
    """Return the largest relative difference over parameters."""
    norms = {key: float(gradient.norm()) for key, gradient in expected.items()}
    least = math.hypot(*norms.values()) / 100
    return max(
        float((gradient - found[key]).norm()) / max(norms[key], least)
        for key, gradient in expected.items()
    )


def compare(folder: Path, objectives: Sequence[str], *flags: str) -> dict[str, Any]:
    """Train all in one process and on ranks, and return differences and seconds per step."""
    flags = ("--objectives", *objectives, *flags)
    arms = {"1": 1, **{f"{n} ranks": n for n in N_RANKS}}
    for arm, n_ranks in arms.items():
        run_ranks(n_ranks, folder / arm, *flags)
    run_ranks(1, folder / IN_PARTS, *flags, "--n-parts", str(max(N_RANKS)), "--precisions", "fp32")
    found: dict[str, Any] = {"differences": {}, "seconds_per_step": {}}
    for name in objectives:
        own = {precision: read(folder / "1", name, precision) for precision in PRECISIONS}
        found["differences"][name] = {
            f"{precision}, {n} ranks": differences(
                seen, read(folder / f"{n} ranks", name, precision)
            )
            for precision, seen in own.items()
            for n in N_RANKS
        } | {
            "fp32, in parts": differences(own["fp32"], read(folder / IN_PARTS, name, "fp32")),
            "bf16 for fp32": differences(own["fp32"], own["bf16"]),
        }
        found["seconds_per_step"][name] = {
            arm: statistics.median(read(folder / arm, name, "fp32")["seconds"][1:]) for arm in arms
        }
    return found


def table(summary: Mapping[str, Any], precision: str) -> str:
    """Return the largest differences in Markdown: of 2 ranks, of 4, in brackets the control's."""
    rows = []
    for name, found in summary["differences"].items():
        of_ranks = [found[f"{precision}, {n} ranks"] for n in N_RANKS]
        cells = [", ".join(f"{each[quantity]:.0e}" for each in of_ranks) for quantity in QUANTITIES]
        alone = found[CONTROLS[precision]]
        cells = [f"{c} ({alone[q]:.0e})" for c, q in zip(cells, QUANTITIES, strict=True)]
        rows.append([name, *cells])
    return markdown_table([precision, *QUANTITIES], rows)


def speed_table(summary: Mapping[str, Any]) -> str:
    """Return seconds per step in Markdown."""
    of_ranks = [f"{n} ranks" for n in N_RANKS]
    rows = [
        [name, *(f"{seconds[arm]:.2f}" for arm in ("1", *of_ranks))]
        for name, seconds in summary["seconds_per_step"].items()
    ]
    return markdown_table(["objective", "1 process", *of_ranks], rows)


def main() -> None:
    """Compare, write the JSON and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES)
    parser.add_argument(
        "--n-steps", nargs="+", default=("3", "6"), help="number of steps of each run"
    )
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    machine = {"processor": processor_name(), "cores": os.cpu_count(), "threads_per_rank": 1}
    summary = {**software(), "machine": machine, "after_steps": {}}
    for n_steps in arguments.n_steps:
        with tempfile.TemporaryDirectory() as folder:
            found = compare(Path(folder), arguments.objectives, "--n-steps", n_steps)
        summary["after_steps"][n_steps] = found
        arguments.output.write_text(json.dumps(summary, indent=1) + "\n")
        print(f"After {n_steps} steps:\n")
        for precision in PRECISIONS:
            print(table(found, precision), end="\n\n")
        print(speed_table(found), end="\n\n")


if __name__ == "__main__":
    main()
