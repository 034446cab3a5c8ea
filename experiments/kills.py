"""How many random kills does a training survive, and does it end as if there had been none?

Trains `rl-infonce train` on real Atari once in peace. Then starts the same run in another folder,
kills it with SIGKILL at random moments, resumes it, kills it again, and so on. After every kill it
counts the steps that are lost and the stray files, and at the end compares the two runs' states to
the last bit. Runs that end before all kills are done are followed by another one.

    python experiments/kills.py --output experiments/results/kills.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from rl_infonce.runs.checkpoints import checkpoints, latest_checkpoint
from rl_infonce.runs.durable import PARTIAL
from rl_infonce.runs.state_file import StateBytes, unpack_state

TRAIN = {
    "ppo": ("-n", "3072", "--n-envs", "2", "--save-freq", "256"),
    "dqn": ("-n", "1200", "--n-envs", "1", "--save-freq", "50"),
}
STEPS_AT_RISK = {"ppo": 2 * 256, "dqn": 54}  # since a checkpoint, and in the rollout after it
COMPARED = ("parameters", "observed", "env", "streams", "extractors", "replay")


def start(algorithm: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a run, or go on with the one in the folder."""
    run_dir = folder / algorithm / "breakout_1"
    command = [sys.executable, "-m", "rl_infonce", "train", "--no-progress"]
    if run_dir.exists():
        command += ["--resume", str(run_dir)]
    else:
        command += ["--game", "breakout", "--algo", algorithm, *TRAIN[algorithm], "--seed", "0"]
        command += ["--device", "cpu", "--num-threads", "1", "-f", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def state_of(run_dir: Path) -> dict[str, Any]:
    """Return what the last checkpoint says, without times of day."""
    path = latest_checkpoint(run_dir / "checkpoints").path
    files = [(path / f"state.{kind}").read_bytes() for kind in ("json", "safetensors")]
    state = unpack_state(StateBytes(*files))
    return {name: state[name] for name in COMPARED}


def is_same(one: Any, other: Any) -> bool:
    """Compare two trees to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if hasattr(one, "shape"):
        return np.array_equal(np.asarray(one), np.asarray(other))
    return bool(one == other)


def kill_until(
    algorithm: str, n_kills: int, expected: dict[str, Any], rng: np.random.Generator, folder: Path
) -> dict[str, Any]:
    """Kill and resume runs; return the counts."""
    counts = {"kills": 0, "killed_before_training": 0, "runs": 0, "runs_equal": 0, "refused": 0}
    lost: list[int] = []
    stray = 0
    while counts["kills"] < n_kills:
        run_dir = folder / algorithm / "breakout_1"
        shutil.rmtree(folder, ignore_errors=True)
        while True:
            process = start(algorithm, folder)
            delay = rng.uniform(2, 20) if counts["kills"] < n_kills else None
            try:
                _, errors = process.communicate(timeout=delay)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                counts["kills"] += 1
                lost.append(steps_lost(run_dir))
                counts["killed_before_training"] += not checkpoints(run_dir / "checkpoints")
                continue
            if process.returncode:
                counts["refused"] += 1
                print(errors.decode(), file=sys.stderr)
            break
        counts["runs"] += 1
        counts["runs_equal"] += is_same(state_of(run_dir), expected)
        stray += len([path for path in run_dir.rglob("*") if path.name.endswith(PARTIAL)])
        print(json.dumps(counts), flush=True)
    return {**counts, "most_steps_lost": max(lost), "stray_files": stray}


def steps_lost(run_dir: Path) -> int:
    """Return how far the curves were ahead of the last checkpoint."""
    table = run_dir / "progress.csv"
    rows = table.read_text().splitlines()[1:] if table.exists() else []
    reached = max(
        (int(row.split(",")[0]) for row in rows if row.split(",")[0].isdecimal()), default=0
    )
    found = checkpoints(run_dir / "checkpoints")
    saved = int(found[0].name.removeprefix("step_")) if found else 0
    return max(reached - saved, 0)


def main() -> None:
    """Kill runs of both algorithms and write what became of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="per algorithm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    found = {}
    for algorithm in TRAIN:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            start(algorithm, Path(folder) / "whole").communicate()
            expected = state_of(Path(folder) / "whole" / algorithm / "breakout_1")
            seconds = time.perf_counter() - began
            found[algorithm] = {
                "seconds_in_peace": round(seconds, 1),
                **kill_until(algorithm, arguments.kills, expected, rng, Path(folder) / "killed"),
            }
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the counts as Markdown."""
    names = list(next(iter(found.values())))
    lines = [
        f"| algorithm | {' | '.join(names).replace('_', ' ')} |",
        "|---" * (len(names) + 1) + "|",
    ]
    lines += [f"| {a} | {' | '.join(str(c[name]) for name in names)} |" for a, c in found.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
