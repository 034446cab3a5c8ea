"""Environment steps per second of SAC and PPO on vectors: stock, the same network, and the loss.

All arms live in one process with one thread and take turns, back and forth; a ratio is that of two
turns of one round. `stock` is Stable-Baselines3's MlpPolicy on HalfCheetah-v5, `infonce` the same
with `InfoNCEExtractor` and its defaults, and `same_network` with `infonce_coef=0`. Where sbx-rl is
installed, the JAX version of Stable-Baselines3 by its authors, stock SBX takes part.

    python experiments/benchmarks/vector_speed.py --output experiments/results/vector_speed.json
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import time
from pathlib import Path
from typing import Any

import stable_baselines3
import torch
from output import finish, machine
from stable_baselines3 import PPO, SAC

from rl_infonce import InfoNCEExtractor

ARMS = ("stock", "same_network", "infonce")
ALGORITHMS: dict[str, Any] = {"SAC": SAC, "PPO": PPO}
N_STEPS = {"SAC": 250, "PPO": 2048}
"""Steps of a turn: one rollout of PPO."""


def build(algorithm: str, arm: str, task: str) -> Any:
    """Return the untrained agent of an arm."""
    known, kwargs = ALGORITHMS, {}
    if arm == "sbx":
        known = vars(importlib.import_module("sbx"))
    elif arm != "stock":
        coef = {"infonce_coef": 0.0} if arm == "same_network" else {}
        kwargs = {
            "features_extractor_class": InfoNCEExtractor,
            "features_extractor_kwargs": coef,
        }
    start = {"learning_starts": 100} if algorithm == "SAC" else {}
    device = {} if arm == "sbx" else {"device": "cpu"}
    return known[algorithm]("MlpPolicy", task, policy_kwargs=kwargs, seed=0, **start, **device)


def compare(algorithm: str, task: str, n_steps: int, rounds: int) -> dict[str, Any]:
    """Let arms take turns after an untimed one; return steps per second of every turn."""
    arms = [*ARMS, *(["sbx"] if importlib.util.find_spec("sbx") else [])]
    models = {arm: build(algorithm, arm, task) for arm in arms}
    for model in models.values():
        model.learn(2 * n_steps)
    turns: dict[str, list[float]] = {arm: [] for arm in arms}
    for index in range(rounds):
        for arm in arms if index % 2 == 0 else reversed(arms):
            start = time.perf_counter()
            models[arm].learn(n_steps, reset_num_timesteps=False)
            turns[arm].append(n_steps / (time.perf_counter() - start))
    return {"algorithm": algorithm, "task": task, "steps": n_steps, "steps_per_second": turns}


def table(summary: dict[str, Any]) -> str:
    """Return, in Markdown, medians of speeds and of ratios within a round."""
    lines = [
        "| algorithm | arm | steps/s | x stock | lowest to highest | x same network |",
        "|---|---|---|---|---|---|",
    ]
    for measured in summary["measured"]:
        turns = measured["steps_per_second"]
        for arm, speeds in turns.items():
            stock, same = (
                [own / other for own, other in zip(speeds, turns[name], strict=True)]
                for name in ("stock", "same_network")
            )
            lines.append(
                f"| {measured['algorithm']} | {arm} | {statistics.median(speeds):.0f} "
                f"| {statistics.median(stock):.2f} | {min(stock):.2f} to {max(stock):.2f} "
                f"| {statistics.median(same):.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Parse, measure, print, and write the JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", default="HalfCheetah-v5")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    summary = {
        "machine": machine(stable_baselines3=stable_baselines3.__version__),
        "measured": [
            compare(algorithm, arguments.task, n_steps, arguments.rounds)
            for algorithm, n_steps in N_STEPS.items()
        ],
    }
    finish(summary, arguments.output, table(summary))


if __name__ == "__main__":
    main()
