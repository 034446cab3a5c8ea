"""Does today's code train what the code of a study trained, to the last digit?

Studies take days, and are not made again at each commit. This trains the first steps of each arm of
a study twice on one machine, at the commit that its results name and at today's, and compares the
returns and losses that both wrote. The command goes on where it was interrupted.

    python experiments/repeats.py --output experiments/results/repeats.json
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from checkouts import RESULTS, ROOT, checked_out, last_commit, read_results
from regime_grids import Grid, read_grid

from rl_infonce.device import processor_name
from rl_infonce.files.durable import replace_text
from rl_infonce.report.table import markdown_table
from rl_infonce.runs.software import software

Numbers: TypeAlias = dict[str, float]
"""Name of each number that a training wrote -> the number."""

REGIMES = {
    **{"sac_sparse_distractors": 3000, "sac_features_plain": 3000, "td3_distractors": 3000},
    **{"ppo_selected_distractors": 16_384, "ppo_selected_plain": 16_384},
}
"""Confirmation of the present default for vectors -> number of steps, most of which train."""
SWEEPS = {
    ("minibatch_weak_arms", "weak"): 4096,
    ("dqn_interval", "baseline"): 6000,
    ("dqn_interval", "each_update"): 6000,
}
"""Study and arm on images -> number of steps, which hold some updates."""
_REGIME = (
    *(sys.executable, "experiments/regimes.py", "train", "OUT/grid.toml"),
    *("--runs", "OUT/locks", "--output", "OUT"),
)
RELEASE = "176c432a9e859103ade74fa928428fc6f607abc8"
"""Commit of 0.1.0: what it trained has no former code to be compared with."""
RL_INFONCE = str(Path(sys.executable).with_name("rl-infonce"))
COMPARED = ("curve", "rollout/", "train/", "infonce/loss", "loss")
"""What follows from all that was trained; other curves are of some updates or rows alone."""


class Plan(NamedTuple):
    """A training of a study, shortened."""

    study: str
    arm: str
    task: str
    commit: str
    n_steps: int
    command: tuple[str, ...]
    """Program and arguments, in a checkout; "OUT" stands for the folder that it writes to."""
    grid: str = ""
    """Text of the file OUT/grid.toml, if the command reads one."""


def plans() -> Iterator[Plan]:
    """Yield a training for each arm; stock has none of our code, and the oracle is the baseline."""
    for study, n_steps in REGIMES.items():
        grid = read_grid(ROOT / "experiments" / "regimes" / f"{study}.toml")
        task = max(grid.fresh_tasks)
        for arm in [each for each in grid.arms if each not in ("stock", "oracle")]:
            path = RESULTS / "regimes" / study / f"{task}-{arm}-{grid.seeds[0]}.json"
            if path.exists() and commit_of(path) != RELEASE:
                text = shortened(grid, task, arm, n_steps)
                yield Plan(study, arm, task, commit_of(path), n_steps, _REGIME, text)
    for (study, arm), n_steps in SWEEPS.items():
        path = min((RESULTS / study / "cells").glob(f"*-{arm}-*/run.json"))
        _, *flags = shlex.split(json.loads(path.read_text(encoding="utf-8"))["command"])
        flags[flags.index("-n") + 1] = str(n_steps)
        flags[flags.index("--run-dir") + 1] = "OUT/run"
        task = flags[flags.index("--game") + 1]
        yield Plan(study, arm, task, commit_of(path), n_steps, (RL_INFONCE, *flags))


def commit_of(path: Path) -> str:
    """Return the commit that a result names."""
    commit: str = json.loads(path.read_text(encoding="utf-8"))["git_commit"]
    return commit


def shortened(grid: Grid, task: str, arm: str, n_steps: int) -> str:
    """Return the text of a grid with one run."""
    top = {"algorithm": grid.algorithm, "n_timesteps": n_steps, "n_envs": grid.n_envs}
    top |= {"normalize": grid.normalize, "tasks": [task], "seeds": [grid.seeds[0]]}
    tables = {"": top, "hyperparameters": grid.hyperparameters, f"arm.{arm}": grid.arms[arm]}
    lines = []
    for name, values in tables.items():
        lines += [f"[{name}]"] if name else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def trained(plan: Plan, checkout: Path, folder: Path) -> Numbers:
    """Train in a checkout and return what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "grid.toml").write_text(plan.grid, encoding="utf-8")
    run_in(checkout, [each.replace("OUT", str(folder)) for each in plan.command])
    return written_in(folder)


def run_in(checkout: Path, command: Sequence[str], **environment: str) -> None:
    """Run a command with the code of a checkout, on one thread."""
    own = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, cwd=checkout, env=own, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Expected {shlex.join(command)} to end, got:\n{done.stderr}")


def written_in(folder: Path) -> Numbers:
    """Return the numbers of a run of either kind."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*-*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        found |= {f"curve {at}": each for at, each in enumerate(run["curve"])}
        found |= run.get("last_infonce", {})
    for path in sorted(folder.glob("run/progress.csv")):
        with path.open(newline="", encoding="utf-8") as stream:
            for at, row in enumerate(csv.DictReader(stream)):
                found |= {f"{name} {at}": each for name, each in row.items()}
    return {
        name: float(each)
        for name, each in found.items()
        if each not in (None, "") and name.startswith(COMPARED)
    }


def compared(then: Numbers, now: Numbers) -> dict[str, Any]:
    """Return how many numbers both wrote, how many are equal, and the largest difference."""
    shared = then.keys() & now.keys()
    if not shared:
        raise RuntimeError("Expected numbers that both trainings wrote, got none.")
    return told(np.array([then[name] - now[name] for name in shared]))


def told(differences: npt.NDArray[Any]) -> dict[str, Any]:
    """Return how many differences [N] there are, how many are none, and the largest."""
    return {
        "n_compared": len(differences),
        "n_equal": int((differences == 0).sum()),
        "largest_difference": float(np.abs(differences).max()),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return what is compared as Markdown."""
    head = ["study", "arm", "task", "commit", "steps", "numbers", "equal", "largest difference"]
    lines = [
        [
            *(row["study"], row["arm"], row["task"], row["commit"][:8], f"{row['n_steps']:,}"),
            *(f"{row['n_compared']}", f"{row['n_equal']}", f"{row['largest_difference']:.2g}"),
        ]
        for row in rows
    ]
    return markdown_table(head, lines)


def main() -> None:
    """Train all plans at both commits, and write what differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    output: Path = arguments.output
    today = last_commit()
    rows = read_results(output, today).get("repeats", [])
    known = [(row["study"], row["arm"]) for row in rows]
    for plan in [each for each in plans() if (each.study, each.arm) not in known]:
        with tempfile.TemporaryDirectory() as name:
            then, now = (
                trained(plan, checked_out(commit, Path(name) / when / "code"), Path(name) / when)
                for when, commit in (("then", plan.commit), ("now", today))
            )
        own = plan._asdict()
        row = {key: own[key] for key in ("study", "arm", "task", "commit", "n_steps")}
        rows.append({**row, **compared(then, now)})
        found = {**software(), "git_commit": today, "hardware": processor_name(), "repeats": rows}
        replace_text(output, json.dumps(found, indent=1) + "\n")
    print(table(rows), end="")


if __name__ == "__main__":
    main()
