"""Which objectives find a dot that walks over flickering noise?

A game whose whole state is known: every frame has noise of its own, in squares of the dot's size,
so that the noise says which frame it is and only the dot says which frames are neighbours.

    python experiments/moving_dot.py --output experiments/results/moving_dot.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch

from rl_infonce.device import has_fast_bf16
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import (
    Budget,
    PretrainingSettings,
    make_objective,
    pretrain,
    training_and_validation,
)
from rl_infonce.probing import LabelledObservations, extract_features, make_task, probe_features
from rl_infonce.report.table import markdown_table

SIDE, DOT, N_CELLS = 84, 6, 12
CELL = SIDE // N_CELLS
EPISODE_LENGTH, N_STEPS = 50, 500
ARMS = ("untrained", "static_dim", "infonce", "jsd_stdim", "stdim", "positional_dim")


class Outcome(TypedDict):
    """F1 of the dot's position under the converged protocol, and seconds of pretraining."""

    f1_weighted: float
    seconds: float


def moving_dot(n_episodes: int, rng: np.random.Generator) -> LabelledObservations:
    """Return frames [K, 1, 84, 84] of walks, labelled with the dot's cell, x and y in 0..11."""
    n_frames = n_episodes * EPISODE_LENGTH
    noise = rng.integers(0, 140, (n_frames, 1, SIDE // DOT, SIDE // DOT), dtype=np.uint8)
    images = noise.repeat(DOT, axis=2).repeat(DOT, axis=3)
    labels = {name: np.empty(n_frames, np.int64) for name in ("x", "y")}
    for episode in range(n_episodes):
        position, velocity = rng.integers(0, N_CELLS, 2), rng.choice([-1, 1], 2)
        for row in range(episode * EPISODE_LENGTH, (episode + 1) * EPISODE_LENGTH):
            y, x = position * CELL
            images[row, 0, y : y + DOT, x : x + DOT] = 255
            labels["y"][row], labels["x"][row] = position
            leaves = (position + velocity < 0) | (position + velocity >= N_CELLS)
            velocity = np.where(leaves, -velocity, velocity)
            position = position + velocity
            if rng.random() < 0.1:
                velocity = rng.choice([-1, 1], 2)
    ids = np.repeat(np.arange(n_episodes), EPISODE_LENGTH)
    return LabelledObservations(images, labels, ids, {"x": ("dot",), "y": ("dot",)})


def measure(arm: str, seed: int, n_steps: int = N_STEPS) -> Outcome:
    """Pretrain an encoder and probe it on walks it has not seen."""
    game = moving_dot(60, np.random.default_rng([seed, 0]))
    generator = torch.Generator().manual_seed(seed)
    encoder = PixelEncoder((1, SIDE, SIDE), 256, generator=generator)
    seconds = 0.0
    if arm != "untrained":
        objective = make_objective(arm, encoder, generator)
        both = training_and_validation(
            game.observations, game.episode_ids, np.random.default_rng(seed)
        )
        precision = "bf16" if has_fast_bf16(torch.device("cpu")) else "fp32"
        settings = PretrainingSettings(
            precision=precision, learning_rate=1e-3, n_validation_frames=256, patience=40, seed=seed
        )
        start = time.perf_counter()
        pretrain(objective, *both, Budget(n_steps=n_steps), settings)
        seconds = time.perf_counter() - start
    probed = moving_dot(40, np.random.default_rng([seed, 1]))
    task = make_task(probed, np.random.default_rng(seed))
    scores, _ = probe_features(extract_features(encoder, probed.observations), task, seed=seed)
    return {"f1_weighted": scores.mean.f1_weighted, "seconds": seconds}


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Return F1 and seconds per arm over seeds, lowest to highest in brackets."""
    rows = []
    for arm, found in outcomes.items():
        f1, seconds = ([each[key] for each in found] for key in ("f1_weighted", "seconds"))
        spread = f"{np.mean(f1):.3f} ({min(f1):.3f} to {max(f1):.3f})"
        shown = f"{np.mean(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f})"
        rows.append([arm, spread, shown if max(seconds) else "-"])
    return markdown_table(["objective", "F1 of the position", "seconds"], rows)


def main() -> None:
    """Run all arms and seeds, write what came out and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    outcomes = {arm: [measure(arm, seed) for seed in arguments.seeds] for arm in ARMS}
    arguments.output.write_text(json.dumps(outcomes, indent=1) + "\n")
    print(table(outcomes))


if __name__ == "__main__":
    main()
