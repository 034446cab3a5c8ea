"""Does today's code pretrain and probe what the code of the ST-DIM table did, to the last digit?

For each row of `stdim_table` this does the work twice on one machine, with the code of the commit
that made the row's cell of Pong and with today's: an encoder is pretrained for a few steps, and its
weights are compared, or the untrained encoder and the majority class are probed, and their scores
are compared. The command goes on where it was interrupted.

    python experiments/pretraining_repeats.py --output experiments/results/pretraining_repeats.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from checkouts import RESULTS, checked_out, last_commit, read_results
from repeats import RL_INFONCE, commit_of, run_in, told
from safetensors.numpy import load_file

from rl_infonce.device import processor_name
from rl_infonce.files.durable import replace_text
from rl_infonce.report.table import markdown_table
from rl_infonce.runs.software import software

Made: TypeAlias = dict[str, np.ndarray[Any, Any]]
"""What of -> its numbers, in an order that both commits share."""

GAME, SEED = "pong", 0
PRETRAINED = ("--budget", "2k frames", "-n", "6000", "--precision", "fp32", "--device", "cpu")
PROBED = ("--n-frames", "12000", "--n-probe-frames", "12000")
LABELS = ("--labels", "anand2019")
"""The labels that supervise today as they did when there was no choice."""
COLUMNS = ("weights", "anand2019", "converged")
"""What is compared: weights of an encoder, and F1s and accuracies under both protocols."""


def commits() -> dict[str, str]:
    """Return objective -> the commit that made its cell of the game."""
    cells = sorted((RESULTS / "stdim_table").glob(f"{GAME}-*-{SEED}.json"))
    return {path.stem.split("-")[1]: commit_of(path) for path in cells}


def made(objective: str, commit: str, folder: Path) -> Made:
    """Do a row's work with the code of a commit, with frames that it collects itself."""
    checkout = checked_out(commit, folder / "code")
    is_pretrained = objective not in ("random", "majority")
    command = pretraining(objective, folder) if is_pretrained else probing(objective, folder)
    if objective == "supervised" and commit == last_commit():
        command += LABELS
    run_in(checkout, command, XDG_CACHE_HOME=str(folder / "cache"))
    return weights(folder) if is_pretrained else scores(folder)


def pretraining(objective: str, folder: Path) -> list[str]:
    """Return the command that pretrains an encoder."""
    command = [RL_INFONCE, "pretrain", "--game", GAME, "--objective", objective, *PRETRAINED]
    return [*command, "--seed", str(SEED), "--no-progress", "-o", str(folder / "pretrained")]


def weights(folder: Path) -> Made:
    """Return the weights of the encoder that was pretrained."""
    parts = load_file(folder / "pretrained" / "encoder.safetensors")
    return {"weights": np.concatenate([parts[name].ravel() for name in sorted(parts)])}


def probing(objective: str, folder: Path) -> list[str]:
    """Return the command that makes a cell without pretraining."""
    command = [sys.executable, "experiments/stdim_table.py", "run", "--games", GAME, *PROBED]
    command += ["--objectives", objective, "--seeds", str(SEED), "--runs", str(folder / "runs")]
    return [*command, "--output", str(folder / "cells")]


def scores(folder: Path) -> Made:
    """Return each protocol's scores of all variables."""
    (path,) = (folder / "cells").glob("*.json")
    found = json.loads(path.read_text(encoding="utf-8"))["scores"]
    variables = {protocol: found[protocol]["variables"] for protocol in COLUMNS[1:]}
    return {
        protocol: np.array([own[name][key] for name in sorted(own) for key in sorted(own[name])])
        for protocol, own in variables.items()
    }


def compared(then: Made, now: Made) -> dict[str, dict[str, float]]:
    """Return how many numbers there are, how many are equal, and the largest difference."""
    return {what: told(numbers - now[what]) for what, numbers in then.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Return how many numbers of each kind are equal, and the largest difference, as Markdown."""
    lines = [
        [row["objective"], row["commit"][:8], *(shown(row.get(each)) for each in COLUMNS)]
        for row in rows
    ]
    return markdown_table(["objective", "commit", *COLUMNS], lines)


def shown(own: dict[str, float] | None) -> str:
    """Return what one cell of the table says."""
    if own is None:
        return "-"
    text = f"{own['n_equal']:,} of {own['n_compared']:,}"
    return f"{text} ({own['largest_difference']:.2g})" if own["largest_difference"] else text


def main() -> None:
    """Do all rows' work at both commits, and write what differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    today = last_commit()
    rows = read_results(output, today).get("repeats", [])
    known = [row["objective"] for row in rows]
    head = {**software(), "git_commit": today, "hardware": processor_name(), "game": GAME}
    for objective, commit in commits().items():
        if objective not in known:
            with tempfile.TemporaryDirectory() as name:
                then = made(objective, commit, Path(name) / "then")
                now = made(objective, today, Path(name) / "now")
            rows.append({"objective": objective, "commit": commit, **compared(then, now)})
            replace_text(output, json.dumps({**head, "repeats": rows}, indent=1) + "\n")
    print(table(rows), end="")


if __name__ == "__main__":
    main()
