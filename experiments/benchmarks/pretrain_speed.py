"""Frames per second of pretraining, by objective, beside a plain implementation of ST-DIM.

`plain stdim` is what one writes from the paper: float32, channels-first, one product and one cross
entropy for each of the 88 places and each term, in a loop. The other arms are a step of
`rl_infonce.pretraining`, channels-last, all places at once, in bfloat16 where the processor
multiplies it by itself; `stdim, fp32` is that without bfloat16. The arms alternate; frames come
from memory. `stdim, loss alone` is the time of ST-DIM's losses on encoded frames, without the
encoder.

    python experiments/benchmarks/pretrain_speed.py --output experiments/results/pretrain_speed.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from output import finish, machine
from torch import Tensor, nn

from rl_infonce.device import has_fast_bf16
from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.pretraining import OBJECTIVES, EpisodeFrames, FrameBatch, make_objective
from rl_infonce.pretraining.gradients import backward
from rl_infonce.pretraining.objectives import default_batch_size

N_FRAMES, EPISODE_LENGTH = 2_000, 200
Step = Callable[[], int]


def frames() -> EpisodeFrames:
    """Return frames of noise with one label."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (N_FRAMES, 1, 210, 160), dtype=np.uint8)
    rows = np.arange(N_FRAMES)
    labels = {"x": rng.integers(0, 256, N_FRAMES)}
    return EpisodeFrames(images, rows // EPISODE_LENGTH, rows, labels)


def fresh_encoder() -> STDIMEncoder:
    """Return an encoder from seed 0."""
    return STDIMEncoder(torch.Generator().manual_seed(0))


def ours(
    name: str,
    data: EpisodeFrames,
    *,
    half: bool,
    batch_size: int | None = None,
    device: torch.device | str = "cpu",
) -> Step:
    """Return a function that takes a step of an objective and returns its number of frames."""
    n_samples = batch_size or default_batch_size(name)
    generator = torch.Generator().manual_seed(0)
    objective = make_objective(name, fresh_encoder(), generator, variables=("x",))
    objective.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(objective.parameters(), lr=3e-4, eps=1e-5, fused=True)
    rng = np.random.default_rng(0)

    def step() -> int:
        rows = objective.draw(data, n_samples, rng)
        images = torch.as_tensor(data.observations[rows], device=device)
        labels = {"x": torch.as_tensor(data.labels["x"][rows[:, 0]], device=device)}
        optimizer.zero_grad()
        backward(objective, FrameBatch(images, labels), half=half, part=n_samples)
        optimizer.step()
        return rows.size

    return step


def plain_stdim(data: EpisodeFrames, *, batch_size: int | None = None) -> Step:
    """Return a function that takes a step of ST-DIM place by place."""
    n_samples = batch_size or default_batch_size("stdim")
    encoder = fresh_encoder()
    from_features, from_map = nn.Linear(256, 128), nn.Linear(128, 128)
    parameters = [p for m in (encoder, from_features, from_map) for p in m.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)
    rng = np.random.default_rng(0)

    def step() -> int:
        starts = rng.choice(data.starts(2), size=n_samples, replace=False)
        before = torch.as_tensor(data.observations[starts]).float() / 255
        now = torch.as_tensor(data.observations[starts + 1]).float() / 255
        maps = encoder.local(now)
        loss = stdim_loss(encoder.head(maps), maps, encoder.local(before), from_features, from_map)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return 2 * n_samples

    return step


def stdim_loss(
    features: Tensor, now: Tensor, before: Tensor, from_features: nn.Linear, from_map: nn.Linear
) -> Tensor:
    """Return the sum of both terms, mean over places, by loops."""
    total = features.new_zeros(())
    height, width = now.shape[2:]
    targets = torch.arange(len(now))
    for y in range(height):
        for x in range(width):
            candidates = before[:, :, y, x]
            for predictions in (from_features(features), from_map(now[:, :, y, x])):
                total = total + F.cross_entropy(predictions @ candidates.T, targets)
    return total / (height * width)


def loss_only(data: EpisodeFrames) -> Step:
    """Return a function that computes ST-DIM's loss and its gradient of encoded frames."""
    objective = make_objective("stdim", fresh_encoder(), torch.Generator().manual_seed(0))
    with torch.no_grad():
        encoded = objective.encode(
            torch.as_tensor(data.observations[:128]).view(64, 2, 1, 210, 160)
        )
    leaves = tuple(each.clone().requires_grad_() for each in encoded)
    batch = FrameBatch(torch.empty(0))

    def step() -> int:
        objective.loss(leaves, batch).loss.backward()  # type: ignore[no-untyped-call]
        return 128

    return step


def compare(rounds: int, steps: int, *, batch_size: int | None = None) -> dict[str, Any]:
    """Alternate the arms and return their median, lowest and highest frames per second."""
    data, half = frames(), has_fast_bf16(torch.device("cpu"))
    arms: dict[str, Step] = {
        "plain stdim": plain_stdim(data, batch_size=batch_size),
        "stdim, fp32": ours("stdim", data, half=False, batch_size=batch_size),
        **{name: ours(name, data, half=half, batch_size=batch_size) for name in OBJECTIVES},
        "stdim, loss alone": loss_only(data),
    }
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for index in range(rounds + 1):
        for name, step in arms.items():
            start = time.perf_counter()
            n_frames = sum(step() for _ in range(1 if name == "cpc" else steps))
            if index:  # the first round warms up
                speeds[name].append(n_frames / (time.perf_counter() - start))
    return {
        "rounds": rounds,
        "steps": steps,
        "bf16": half,
        "machine": machine(),
        "frames_per_second": {
            name: {"median": statistics.median(s), "lowest": min(s), "highest": max(s)}
            for name, s in speeds.items()
        },
    }


def table(summary: dict[str, Any]) -> str:
    """Return medians in Markdown, and how often plain ST-DIM's."""
    found = summary["frames_per_second"]
    plain = found["plain stdim"]["median"]
    lines = ["| objective | frames/s | lowest to highest | x plain stdim |", "|---|---|---|---|"]
    for name, speed in found.items():
        lines.append(
            f"| {name} | {speed['median']:.0f} | {speed['lowest']:.0f} to {speed['highest']:.0f} "
            f"| {speed['median'] / plain:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse, measure, print, and write the JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="number of steps per arm and round")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    summary = compare(args.rounds, args.steps)
    finish(summary, args.output, table(summary))


if __name__ == "__main__":
    main()
