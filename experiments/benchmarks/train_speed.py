r"""Environment steps per second and peak memory of stock PPO or DQN and of the same with InfoNCE.

Stock is what Stable-Baselines3 users have: NatureCNN on `make_atari_env`. Ours is
`InfoNCEExtractor` on `make_atari_vec_env`, loss on, in fp32 and, where the processor multiplies it,
in bf16. The arms with `_minibatch` take pairs from RL's minibatch, where others draw them, and
those with `_off` have `infonce_coef=0`, so they show what the loss costs. For DQN, which is timed
in fp32, `_minibatch_8` encodes eight futures, and `_every_8` has the loss in one of eight updates.
PPO uses 8 environments x 128 steps, batches of 256 and 4 epochs; DQN has one environment and RL
Zoo's settings, but a replay buffer of 10,000 that trains from step 1,000 on; both have
`net_arch=[]`. Every run is a process of its own; a round runs each arm once, and the ratio is taken
within the round. Arithmetic is what torch counts in convolutions and matrix products of the
updates, forward and backward, beside a large matrix product in the same process.

    python experiments/benchmarks/train_speed.py --output experiments/results/train_speed.json
    python experiments/benchmarks/train_speed.py --algorithm DQN \
        --output experiments/results/train_speed_dqn.json
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import stable_baselines3
import torch
from contrast_speed import matmul_speed
from output import finish, machine
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack
from torch.utils.flop_counter import FlopCounterMode

from rl_infonce import InfoNCEExtractor, make_atari_vec_env
from rl_infonce.atari import resolve_game
from rl_infonce.device import has_fast_bf16
from rl_infonce.training.rl_zoo import DQN_SETTINGS, PPO_SIZES

OF_DQN: dict[str, dict[str, Any]] = {
    "minibatch_8": {"pairs_from": "minibatch", "n_pairs": 8},
    "every_8": {"pairs_from": "buffer", "infonce_interval": 8},
}
FORMS: dict[str, dict[str, Any]] = {
    "off": {"infonce_coef": 0.0, "pairs_from": "buffer"},
    "": {"pairs_from": "buffer"},
    "minibatch": {"pairs_from": "minibatch"},
    **OF_DQN,
}
ARMS = (
    "stock",
    *(f"{precision}_{form}".strip("_") for precision in ("fp32", "bf16") for form in FORMS),
)
N_ENVS, N_STEPS = 8, PPO_SIZES["n_steps"]
COUNTED = {"PPO": N_ENVS * N_STEPS, "DQN": 128}
"""Steps in which arithmetic is counted, which takes long: a rollout, and 32 updates."""

STEPS = {"PPO": 8 * N_ENVS * N_STEPS, "DQN": N_ENVS * N_STEPS}
"""Steps that are timed: 128 updates, whose reports come as often as in the long run, and 256."""

DQN_SIZES = {**DQN_SETTINGS, "buffer_size": 10_000, "learning_starts": 1_000}


def default_arms(algorithm: str) -> tuple[str, ...]:
    """Return the arms that an algorithm is timed with: PPO's in formats that are fast here."""
    if algorithm == "DQN":
        return tuple(arm for arm in ARMS if not arm.startswith("bf16"))
    slow = () if has_fast_bf16(torch.device("cpu")) else ("bf16",)
    return tuple(
        arm for arm in ARMS if not arm.startswith(slow) and not arm.endswith(tuple(OF_DQN))
    )


def build(arm: str, game: str, algorithm: str = "PPO") -> Any:
    """Return the agent of an arm."""
    policy_kwargs: dict[str, Any] = {"net_arch": []}
    n_envs = N_ENVS if algorithm == "PPO" else 1
    if arm == "stock":
        name = "".join(part.capitalize() for part in resolve_game(game).split("_"))
        env: Any = VecFrameStack(make_atari_env(f"{name}NoFrameskip-v4", n_envs=n_envs, seed=0), 4)
    else:
        env = make_atari_vec_env(game, n_envs=n_envs, seed=0)
        policy_kwargs["features_extractor_class"] = InfoNCEExtractor
        precision, _, form = arm.partition("_")
        policy_kwargs["features_extractor_kwargs"] = {"precision": precision, **FORMS[form]}
    if algorithm == "DQN":
        return DQN("CnnPolicy", env, **DQN_SIZES, policy_kwargs=policy_kwargs, seed=0)
    sizes = {**PPO_SIZES, "n_steps": N_STEPS}
    return PPO("CnnPolicy", env, **sizes, policy_kwargs=policy_kwargs, seed=0)


def measure(arm: str, game: str, n_steps: int, algorithm: str = "PPO") -> dict[str, float]:
    """Train after 1,024 untimed steps; return speeds, peak memory and arithmetic."""
    model = build(arm, game, algorithm)
    model.learn(N_ENVS * N_STEPS)
    phases = Phases()
    start, processor = time.perf_counter(), time.process_time()
    model.learn(n_steps, callback=phases, reset_num_timesteps=False)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dtype = torch.bfloat16 if "bf16" in arm else torch.float32
    n_counted = COUNTED[algorithm]
    flops_of_step = flops_of_update(model, n_counted) / n_counted
    return {
        "steps_per_second": n_steps / seconds,
        "processor_seconds": processor,
        "rollout_share": phases.in_rollouts / seconds,
        "peak_mib": peak_kib / 1024,
        "gflop_per_iteration": N_ENVS * N_STEPS * flops_of_step / 1e9,
        "update_gflop_per_second": n_steps * flops_of_step / (seconds - phases.in_rollouts) / 1e9,
        "matmul_gflop_per_second": matmul_speed(dtype),
    }


def flops_of_update(model: Any, n_steps: int) -> float:
    """Train for some steps more and return what torch counts in their updates."""
    with FlopCounterMode(display=False) as counter:
        counted = Phases(counter.get_total_flops)
        model.learn(n_steps, callback=counted, reset_num_timesteps=False)
    found: float = counter.get_total_flops() - counted.in_rollouts
    return found


class Phases(BaseCallback):
    """Sums what a clock gains inside rollouts; the rest is gained in updates."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.clock = clock
        self.in_rollouts = 0.0

    def _on_rollout_start(self) -> None:
        self.in_rollouts -= self.clock()

    def _on_rollout_end(self) -> None:
        self.in_rollouts += self.clock()

    def _on_step(self) -> bool:
        return True


def measure_in_process(arm: str, game: str, n_steps: int, algorithm: str) -> dict[str, float]:
    """Run `measure` in a fresh interpreter, so that peak memory is the arm's own."""
    what = ["--arm", arm, "--game", game, "--steps", str(n_steps), "--algorithm", algorithm]
    command = [sys.executable, __file__, *what]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return measured


def compare(
    game: str, n_steps: int, rounds: int, arms: Sequence[str], algorithm: str = "PPO"
) -> dict[str, Any]:
    """Alternate the arms; return every run, and medians of the ratios to stock in its round."""
    runs: list[dict[str, dict[str, float]]] = []
    for index in range(rounds):
        order = arms if index % 2 == 0 else arms[::-1]
        runs.append({arm: measure_in_process(arm, game, n_steps, algorithm) for arm in order})
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return {
        "algorithm": algorithm,
        "game": game,
        "steps": n_steps,
        "rounds": rounds,
        "machine": machine(
            stable_baselines3=stable_baselines3.__version__,
            device="cuda" if torch.cuda.is_available() else "cpu",
        ),
        "median": {arm: medians(arm, runs) for arm in arms},
        "runs": runs,
    }


def medians(arm: str, runs: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    """Return the medians over rounds of an arm's figures and of its ratios to stock."""
    found = {name: statistics.median(run[arm][name] for run in runs) for name in runs[0][arm]}
    for ratio, name in (("speed_ratio", "steps_per_second"), ("memory_ratio", "peak_mib")):
        found[ratio] = statistics.median(run[arm][name] / run["stock"][name] for run in runs)
    return found


def table(summary: dict[str, Any]) -> str:
    """Return the medians in Markdown."""
    lines = [
        "| arm | steps/s | x stock | lowest to highest | peak memory x stock |",
        "|---|---|---|---|---|",
    ]
    for arm, m in summary["median"].items():
        ratios = [
            r[arm]["steps_per_second"] / r["stock"]["steps_per_second"] for r in summary["runs"]
        ]
        lines.append(
            f"| {arm} | {m['steps_per_second']:.0f} | {m['speed_ratio']:.2f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} | {m['memory_ratio']:.2f} |"
        )
    return "\n".join(lines)


def cost_table(summary: dict[str, Any]) -> str:
    """Return in Markdown what the loss costs beside the same network without it, within rounds."""
    lines = [
        "| arm | steps/s, x off | processor time, x off | peak memory, x off |",
        "|---|---|---|---|",
    ]
    for arm in summary["median"]:
        off = f"{arm.partition('_')[0]}_off"
        if arm in ("stock", off):
            continue
        cells = []
        for name in ("steps_per_second", "processor_seconds", "peak_mib"):
            ratios = [run[arm][name] / run[off][name] for run in summary["runs"]]
            cells.append(
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            )
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def limits_table(summary: dict[str, Any]) -> str:
    """Return, in Markdown, where the time goes and how far updates are from a matrix product."""
    lines = [
        "| arm | in rollouts | GFLOP per 1,024 steps | GFLOP/s in updates | of a matrix product |",
        "|---|---|---|---|---|",
    ]
    for arm, m in summary["median"].items():
        lines.append(
            f"| {arm} | {m['rollout_share']:.0%} | {m['gflop_per_iteration']:.0f} "
            f"| {m['update_gflop_per_second']:.0f} "
            f"| {m['update_gflop_per_second'] / m['matmul_gflop_per_second']:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse, measure, print, and write the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=tuple(STEPS), default="PPO")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--steps", type=int, help="of training that is timed")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--arms", choices=ARMS, nargs="+", help="those of the algorithm")
    parser.add_argument("--arm", choices=ARMS, help="measure one arm in this process")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    n_steps = args.steps or STEPS[args.algorithm]
    if args.arm is not None:
        print(json.dumps(measure(args.arm, args.game, n_steps, args.algorithm)))
        return
    arms = args.arms or default_arms(args.algorithm)
    summary = compare(args.game, n_steps, args.rounds, arms, args.algorithm)
    finish(summary, args.output, table(summary), cost_table(summary), limits_table(summary))


if __name__ == "__main__":
    main()
