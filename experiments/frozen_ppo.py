"""What does PPO make of a pretrained encoder that it may not change?

Pretrains an encoder of what agents see with ST-DIM on frames of a random agent, and trains PPO on
top of it: frozen, fine-tuned, and beside it on a frozen untrained encoder and from scratch. No arm
has an auxiliary loss. All stages resume, and refuse what was made with other settings; several
processes may share the folders.

    python experiments/frozen_ppo.py train --runs RUNS --output experiments/results/frozen_ppo
    python experiments/frozen_ppo.py table --output experiments/results/frozen_ppo
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.atari.cache import cached_frames
from rl_infonce.checks import differences
from rl_infonce.files.durable import replace_text
from rl_infonce.networks.encoder_file import load_encoder, read_header, save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import (
    PretrainingSettings,
    make_objective,
    parse_budget,
    pretrain,
    training_and_validation,
)
from rl_infonce.report.statistics import t_interval
from rl_infonce.runs.claim import claimed
from rl_infonce.runs.run_directory import software
from rl_infonce.training.make_agent import make_agent

GAME, OBJECTIVE, BUDGET, N_FRAMES = "boxing", "stdim", "250k frames", 100_000
SEEDS, N_STEPS, N_ENVS = (0, 1, 2), 200_000, 8
ARMS = ("scratch", "frozen_untrained", "frozen", "fine_tuned")
PRETRAINED = ("frozen", "fine_tuned")


class Returns(BaseCallback):
    """Notes the step and the return of every game that ends."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        self.found += [
            (self.num_timesteps, info["episode"]["r"])
            for info in self.locals["infos"]
            if "episode" in info
        ]
        return True


def pretraining(budget: str, n_frames: int) -> dict[str, Any]:
    """Return what an encoder is made of."""
    return {"game": GAME, "objective": OBJECTIVE, "budget": budget, "n_frames": n_frames}


def check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any], flag: str) -> None:
    """Raise unless a file says that it was made as it would be now."""
    if listed := differences(found, wanted):
        raise ValueError(
            f"Expected {path} to be made with these settings, got {listed}. Choose another {flag}."
        )


def pretrained(runs: Path, budget: str, n_frames: int) -> Path:
    """Return the file of the encoder, pretrained by the first process that needs it."""
    path = runs / "encoder.safetensors"
    while not path.exists():
        with claimed(path, runs) as is_missing:
            if is_missing:
                make_encoder(path, budget, n_frames)
        time.sleep(0 if path.exists() else 10)
    check_same(path, read_header(path)["provenance"], pretraining(budget, n_frames), "--runs")
    return path


def make_encoder(path: Path, budget: str, n_frames: int) -> None:
    """Pretrain an encoder and save it."""
    frames = cached_frames(GAME, n_frames, seed=1, policy="random", view="agent")
    both = training_and_validation(
        frames.observations("agent"),
        frames.episode_ids,
        np.random.default_rng(0),
        group_ids=frames.game_ids,
    )
    generator = torch.Generator().manual_seed(0)
    encoder = PixelEncoder((4, 84, 84), generator=generator)
    objective = make_objective(OBJECTIVE, encoder, generator)
    settings = PretrainingSettings()
    about = pretraining(budget, n_frames)
    progress = pretrain(
        objective, *both, parse_budget(budget), settings, folder=path.parent, about=about
    )
    save_encoder(encoder, path, provenance={**about, **asdict(settings), "steps": progress.step})


def build(arm: str, seed: int, encoder: Path | None, n_steps: int) -> BaseAlgorithm:
    """Return the untrained model of an arm."""
    start: Any = None if encoder is None else load_encoder(encoder)
    if arm == "frozen_untrained":
        start = PixelEncoder((4, 84, 84), generator=torch.Generator().manual_seed(seed))
    return make_agent(
        "ppo",
        GAME,
        n_timesteps=n_steps,
        n_envs=N_ENVS,
        seed=seed,
        device="cpu",
        extractor={"infonce_coef": 0.0},
        encoder=start,
        freeze=arm.startswith("frozen"),
    )


def train(runs: Path, output: Path, n_steps: int, budget: str, n_frames: int) -> None:
    """Train every run that has no file yet."""
    for seed, arm in product(SEEDS, ARMS):
        path = output / f"{arm}-{seed}.json"
        made_of = pretraining(budget, n_frames) if arm in PRETRAINED else None
        settings = {"game": GAME, "n_steps": n_steps, "pretraining": made_of}
        if path.exists():
            check_same(path, json.loads(path.read_text()), settings, "--output")
        with claimed(path, runs) as is_missing:
            if is_missing:
                encoder = pretrained(runs, budget, n_frames) if made_of else None
                content = {
                    "arm": arm,
                    "seed": seed,
                    **settings,
                    **played(arm, seed, encoder, n_steps),
                }
                replace_text(path, json.dumps(content) + "\n")
                print(path, flush=True)


def played(arm: str, seed: int, encoder: Path | None, n_steps: int) -> dict[str, Any]:
    """Train a model and return how that went, and from which encoder."""
    model, returns = build(arm, seed, encoder, n_steps), Returns()
    start = time.perf_counter()
    model.learn(n_steps, callback=returns)
    return {
        "encoder_sha256": encoder and hashlib.sha256(encoder.read_bytes()).hexdigest(),
        "seconds": round(time.perf_counter() - start, 1),
        "returns": returns.found,
        **software(),
    }


def last_return(content: dict[str, Any]) -> float:
    """Return the mean return of the games that ended in the last fifth of training."""
    first = 0.8 * content["n_steps"]
    return float(np.mean([value for step, value in content["returns"] if step > first]))


def contents(output: Path) -> list[dict[str, Any]]:
    """Return what all files say.

    Raises:
        ValueError: If they differ in steps, or in the encoder where they have one.
    """
    found = [json.loads(path.read_text()) for path in sorted(output.glob("*.json"))]
    for key in ("n_steps", "encoder_sha256"):
        values = {content.get(key) for content in found} - {None}
        if len(values) > 1:
            raise ValueError(
                f"Expected one `{key}` in the files of {output}, got {sorted(values)}. Keep the "
                "runs of another table in another folder."
            )
    return found


def table(output: Path) -> str:
    """Return the returns of each arm, and its differences from both frozen encoders."""
    runs = {(content["arm"], content["seed"]): content for content in contents(output)}
    found = {run: last_return(content) for run, content in runs.items()}
    minutes = {run: content["seconds"] / 60 for run, content in runs.items()}
    lines = ["| arm | return, by seed | mean | over frozen_untrained | frozen over it | minutes |"]
    lines.append("|---" * 6 + "|")
    for arm in ARMS:
        seeds = [seed for seed in SEEDS if (arm, seed) in found]
        values = [found[arm, seed] for seed in seeds]
        shown = ", ".join(f"{value:.1f}" for value in values) or "missing"
        mean = f"{np.mean(values):.1f}" if values else "missing"
        gains = gain(found, arm, "frozen_untrained"), gain(found, "frozen", arm)
        taken = ", ".join(f"{minutes[arm, seed]:.0f}" for seed in seeds) or "missing"
        lines.append(f"| {arm} | {shown} | {mean} | {' | '.join(gains)} | {taken} |")
    return "\n".join(lines)


def gain(found: Mapping[tuple[str, int], float], arm: str, other: str) -> str:
    """Return what an arm gains over another by seed, with its t interval; "-" without two seeds."""
    both = [seed for seed in SEEDS if {(arm, seed), (other, seed)} <= found.keys()]
    if arm == other or len(both) < 2:
        return "-"
    middle, low, high = t_interval([found[arm, seed] - found[other, seed] for seed in both])
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("train", "table"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--n-steps", type=int, default=N_STEPS)
    parser.add_argument("--budget", default=BUDGET, help="how long to pretrain")
    parser.add_argument(
        "--n-frames", type=int, default=N_FRAMES, help="number of frames to pretrain on"
    )
    arguments = parser.parse_args()
    if arguments.stage == "table":
        print(table(arguments.output))
        return
    torch.set_num_threads(1)
    for folder in (arguments.runs, arguments.output):
        folder.mkdir(parents=True, exist_ok=True)
    train(arguments.runs, arguments.output, arguments.n_steps, arguments.budget, arguments.n_frames)


if __name__ == "__main__":
    main()
