"""How many random kills does a training survive, and does it end as if there had been none?

Trains on images and on vectors, as `rl-infonce train` does, once in peace. Then starts the same run
in another folder, kills it with SIGKILL at random moments, resumes it, kills it again, and so on.
After every kill it counts the steps since the last checkpoint, and at the end stray files; the two
runs' states are compared to the last bit. A run that ends before all kills are done is followed by
another one.

    python experiments/kills.py --kills 50 --output experiments/results/kills.json
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

from rl_infonce.files.durable import PARTIAL
from rl_infonce.files.state_file import StateBytes, unpack_state
from rl_infonce.report.table import markdown_table
from rl_infonce.runs.checkpoints import checkpoints, latest_checkpoint
from rl_infonce.runs.software import software

RUNS: dict[str, dict[str, Any]] = {
    "PPO on Breakout": {
        **{"game": "breakout", "algo": "ppo"},
        **{"n_timesteps": 3072, "n_envs": 2, "save_freq": 256},
    },
    "DQN on Breakout": {
        **{"game": "breakout", "algo": "dqn"},
        **{"n_timesteps": 1200, "n_envs": 1, "save_freq": 50},
    },
    "PPO on Hopper": {
        **{"env": "Hopper-v5", "algo": "ppo", "normalize": True},
        **{"n_timesteps": 12_288, "n_envs": 2, "save_freq": 1024},
        "hyperparams": ["n_steps:512"],
    },
    "SAC on HalfCheetah": {
        **{"env": "HalfCheetah-v5", "algo": "sac"},
        **{"n_timesteps": 1200, "n_envs": 1, "save_freq": 50},
    },
}
SECONDS_TO_LIVE = (2, 20)
COMPARED = ("parameters", "observed", "env", "streams", "extractors", "replay", "normalization")


def start(run: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a run, or go on with the one in the folder."""
    run_dir = run_folder(folder)
    if not (run_dir / "run.json").exists():
        shutil.rmtree(run_dir, ignore_errors=True)
    given = json.dumps({**RUNS[run], "seed": 0, "device": "cpu", "num_threads": 1})
    script = str(Path(__file__).with_name("counted_training.py"))
    command = [sys.executable, script, str(reached_in(folder)), str(run_dir), given]
    folder.mkdir(parents=True, exist_ok=True)
    reached_in(folder).unlink(missing_ok=True)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def run_folder(folder: Path) -> Path:
    """Return where the run is."""
    return folder / "run"


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
    if isinstance(one, float) or hasattr(one, "shape"):
        return _bits(one) == _bits(other)
    return bool(one == other)


def _bits(value: Any) -> tuple[Any, ...]:
    """Return what tells numbers apart: 0.0 from -0.0, and no NaN from itself."""
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes()


def kill_until(
    run: str, n_kills: int, expected: dict[str, Any], rng: np.random.Generator, folder: Path
) -> dict[str, Any]:
    """Kill and resume runs; return the counts."""
    counts = {"kills": 0, "killed_before_a_checkpoint": 0, "runs": 0, "runs_equal": 0, "refused": 0}
    lost: list[int] = []
    stray = 0
    while counts["kills"] < n_kills:
        run_dir = run_folder(folder)
        shutil.rmtree(folder, ignore_errors=True)
        while True:
            process = start(run, folder)
            delay = rng.uniform(*SECONDS_TO_LIVE) if counts["kills"] < n_kills else None
            try:
                _, errors = process.communicate(timeout=delay)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                counts["kills"] += 1
                saved = checkpoints(run_dir / "checkpoints")
                counts["killed_before_a_checkpoint"] += not saved
                lost.append(steps_lost(folder, saved))
                continue
            if process.returncode:
                counts["refused"] += 1
                print(errors.decode(), file=sys.stderr)
            break
        counts["runs"] += 1
        counts["runs_equal"] += is_same(state_of(run_dir), expected)
        stray += len([path for path in run_dir.rglob("*") if path.name.endswith(PARTIAL)])
        print(json.dumps(counts), flush=True)
    return {
        **counts,
        "stray_files": stray,
        "steps_between_checkpoints": RUNS[run]["save_freq"],
        "mean_steps_lost": round(float(np.mean(lost)), 1),
        "most_steps_lost": max(lost),
    }


def reached_in(folder: Path) -> Path:
    """Return the file that says how far a run came."""
    return folder / "steps"


def steps_lost(folder: Path, saved: list[Path]) -> int:
    """Return how many steps were played since the last checkpoint."""
    reached = reached_in(folder)
    text = reached.read_text() if reached.exists() else ""
    step = int(saved[0].name.removeprefix("step_")) if saved else 0
    return max(int(text or 0) - step, 0)


def main() -> None:
    """Kill each of the runs and write what became of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="number of kills of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(arguments.seed)
    found: dict[str, Any] = {**software(), "counts": {}}
    for run in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            start(run, Path(folder) / "whole").communicate()
            expected = state_of(run_folder(Path(folder) / "whole"))
            seconds = time.perf_counter() - began
            found["counts"][run] = {
                "seconds_in_peace": round(seconds, 1),
                **kill_until(run, arguments.kills, expected, rng, Path(folder) / "killed"),
            }
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    counts = found["counts"].values()
    unequal = any(each["runs_equal"] < each["runs"] for each in counts)
    sys.exit(unequal or any(each["refused"] or each["stray_files"] for each in counts))


def table(found: dict[str, Any]) -> str:
    """Return the counts as Markdown."""
    counts = found["counts"]
    names = list(next(iter(counts.values())))
    rows = [[run, *(str(own[name]) for name in names)] for run, own in counts.items()]
    return markdown_table(["run", *(name.replace("_", " ") for name in names)], rows)


if __name__ == "__main__":
    main()
