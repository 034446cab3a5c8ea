"""How many emulator threads serve a training loop best?

Alternates the candidates so that a busy moment hits all of them. Prints medians of env steps per
second: emulator alone; with a NatureCNN forward per step and 256-image updates.

    python experiments/benchmarks/env_threads.py --output experiments/results/env_threads.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from output import finish, machine
from stable_baselines3.common.torch_layers import NatureCNN

from rl_infonce.atari import AtariVecEnv, make_atari_vec_env

SPEEDS = ("emulator", "training_loop")


@dataclass(frozen=True)
class Args:
    """What to measure; 0 threads is the default, one per core."""

    n_threads: tuple[int, ...] = (1, 2, 0)
    n_envs: int = 8
    n_calls: int = 256
    n_repetitions: int = 5
    game: str = "pong"


def emulator_only(env: AtariVecEnv, n_calls: int) -> float:
    """Return env steps per second of the emulator alone."""
    actions = np.zeros(env.num_envs, np.int64)
    start = time.perf_counter()
    for _ in range(n_calls):
        env.step(actions)
    return n_calls * env.num_envs / (time.perf_counter() - start)


def training_loop(env: AtariVecEnv, n_calls: int, network: NatureCNN) -> float:
    """Return env steps per second of a loop shaped like PPO's."""
    optimizer = torch.optim.Adam(network.parameters())
    images = torch.rand(256, 4, 84, 84)
    actions = np.zeros(env.num_envs, np.int64)
    start = time.perf_counter()
    for call in range(n_calls):
        observations, *_ = env.step(actions)
        with torch.no_grad():
            network(torch.as_tensor(observations).float() / 255)
        if call % 128 == 127:
            optimizer.zero_grad()
            network(images).square().mean().backward()
            optimizer.step()
    return n_calls * env.num_envs / (time.perf_counter() - start)


def compare(args: Args) -> dict[str, Any]:
    """Return medians over repetitions of both speeds for each number of threads."""
    envs = {
        n: make_atari_vec_env(args.game, args.n_envs, seed=0, n_threads=n or None)
        for n in args.n_threads
    }
    network = NatureCNN(next(iter(envs.values())).observation_space)
    rates: dict[int, list[dict[str, float]]] = {n: [] for n in envs}
    for repetition in range(args.n_repetitions + 1):
        for n, env in envs.items():
            env.reset()
            speeds = {
                "emulator": emulator_only(env, args.n_calls),
                "training_loop": training_loop(env, args.n_calls, network),
            }
            if repetition:  # the first round warms up
                rates[n].append(speeds)
    return {
        "args": asdict(args),
        "machine": machine(),
        "median": {
            str(n): {name: statistics.median(r[name] for r in rates[n]) for name in SPEEDS}
            for n in envs
        },
    }


def table(summary: dict[str, Any]) -> str:
    """Return the medians in Markdown."""
    lines = ["| n_threads | emulator alone | training loop |", "|---|---|---|"]
    for n, speeds in summary["median"].items():
        name = "None (one per core)" if n == "0" else n
        lines.append(f"| {name} | " + " | ".join(f"{speeds[s]:.0f}" for s in SPEEDS) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parse, measure, print, and write the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n-threads", type=int, nargs="+", default=Args.n_threads)
    for flag in ("n_envs", "n_calls", "n_repetitions"):
        parser.add_argument(f"--{flag.replace('_', '-')}", type=int, default=getattr(Args, flag))
    parser.add_argument("--game", default=Args.game)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = vars(parser.parse_args())
    output = args.pop("output")
    summary = compare(Args(**args))
    finish(summary, output, table(summary))


if __name__ == "__main__":
    main()
