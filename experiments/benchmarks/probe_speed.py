"""Seconds to fit converged probes, beside training one variable at a time to the same loss.

Synthetic data of the shape of a game: 15 variables of 2 to 160 classes walk through episodes, and
512 features are a fixed random ReLU network of them. The arms, in alternating order within a round:

- `ours`: `fit_probe(..., protocol="converged")`, with its choice of penalties.
- `adam, told`: a `torch.nn.Linear` per variable on the standardised features, minibatches of 256,
  Adam with an L2 penalty, the validation loss after each epoch. It is told which penalty `ours`
  chose and which validation loss it reached in the round, and stops there, within 0.5 %. So it
  pays for no choice and no patience, unless it does not get there: 10 epochs without progress, or
  100, end a run.
- `adam`: the same loop without that knowledge, for each of four penalties; the best is kept. What
  one would write without this package.

A ratio is taken within a round. What limits `ours` is told by the time of its products alone and
by their arithmetic against that of a large product in the same process.

    python experiments/benchmarks/probe_speed.py --output experiments/results/probe_speed.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from contrast_speed import matmul_speed
from output import finish, machine
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rl_infonce.probing import Probe, Split, fit_probe, split_episodes

N_FRAMES, N_FEATURES, EPISODE_LENGTH = 50_000, 512, 500
N_CLASSES = (2, 2, 3, 4, 6, 9, 14, 20, 30, 45, 65, 90, 115, 140, 160)
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)
SLACK = 1.005


class Data(NamedTuple):
    """Features, labels, split, and the same as the loops want them."""

    features: npt.NDArray[np.float32]
    labels: dict[str, npt.NDArray[np.uint8]]
    split: Split


class Outcome(NamedTuple):
    """Seconds, validation losses in nats and chosen penalties of an arm, by variable."""

    seconds: dict[str, float]
    losses: dict[str, float]
    penalties: dict[str, float]


def synthetic(n_frames: int, n_features: int, seed: int = 0) -> Data:
    """Return walks of the variables through episodes, seen through a random ReLU network."""
    rng = np.random.default_rng(seed)
    episode_ids = np.arange(n_frames) // EPISODE_LENGTH
    walks = np.empty((n_frames, len(N_CLASSES)))
    for episode in np.unique(episode_ids):
        rows = np.flatnonzero(episode_ids == episode)
        steps = rng.normal(size=(len(rows), len(N_CLASSES))) * 0.04
        walks[rows] = np.cumsum(steps, axis=0) + rng.random(len(N_CLASSES))
    walks = np.abs((walks + 1) % 2 - 1)  # reflected into 0..1
    labels = {
        f"variable_{index}": np.minimum(walks[:, index] * n, n - 1).astype(np.uint8)
        for index, n in enumerate(N_CLASSES)
    }
    # 24 waves along each variable; every feature mixes all of them, as pixels do positions
    waves = np.repeat(walks, 24, axis=1)
    hidden = np.sin(waves * rng.normal(size=waves.shape[1]) * 15 + rng.random(waves.shape[1]) * 6)
    mixed = hidden @ rng.normal(size=(waves.shape[1], n_features)) / waves.shape[1] ** 0.5
    features = np.maximum(mixed + 0.05 * rng.normal(size=mixed.shape), 0)
    return Data(
        features.astype(np.float32), labels, split_episodes(episode_ids, np.random.default_rng(0))
    )


def standardised(data: Data) -> Tensor:
    """Return the features standardised on the training part."""
    train = data.features[data.split.train]
    scale = np.maximum(train.std(axis=0), 1e-6)
    return torch.as_tensor((data.features - train.mean(axis=0)) / scale)


def ours(data: Data) -> Outcome:
    """Fit all variables at once; the time is that of all."""
    start = time.perf_counter()
    probe = fit_probe(data.features, data.labels, data.split, protocol="converged")
    seconds = time.perf_counter() - start
    share = seconds / len(data.labels)
    losses = validation_losses(probe, data)
    return Outcome(dict.fromkeys(data.labels, share), losses, probe.settings["chosen_penalty"])


def validation_losses(probe: Probe, data: Data) -> dict[str, float]:
    """Return the mean cross-entropy of each variable over validation frames of known classes."""
    rows = data.split.validation
    inputs = (torch.as_tensor(data.features[rows]) - probe.mean) / probe.scale
    found = {}
    for name, each in probe.classifiers.items():
        targets = places(data.labels[name][rows], each.classes)
        scores = inputs @ each.weight.T + each.bias
        found[name] = float(F.cross_entropy(scores, targets, ignore_index=-1))
    return found


def places(values: npt.NDArray[Any], classes: npt.NDArray[Any]) -> Tensor:
    """Return the place of each value among the classes, -1 where it is none of them."""
    position = np.full(256, -1)
    position[classes] = np.arange(len(classes))
    return torch.as_tensor(position[values])


def adam(data: Data, told: Outcome | None) -> Outcome:
    """Train one variable after the other, up to a told validation loss or with patience."""
    seconds, losses, penalties = {}, {}, {}
    inputs = standardised(data)
    for name, values in data.labels.items():
        start = time.perf_counter()
        classes = np.unique(values[data.split.train])
        labels = places(values, classes)
        target = -1.0 if told is None else SLACK * told.losses[name]
        choices = PENALTIES if told is None else (told.penalties[name],)
        found = {each: adam_run(inputs, labels, data.split, each, target) for each in choices}
        penalties[name] = min(found, key=found.__getitem__)
        losses[name] = found[penalties[name]]
        seconds[name] = time.perf_counter() - start
    return Outcome(seconds, losses, penalties)


def adam_run(inputs: Tensor, labels: Tensor, split: Split, penalty: float, target: float) -> float:
    """Return the best validation loss of one run."""
    generator = torch.Generator().manual_seed(0)
    probe = nn.Linear(inputs.shape[1], int(labels.max()) + 1)
    for weights in probe.parameters():  # uniform, as nn.Linear begins
        nn.init.uniform_(weights, -(probe.in_features**-0.5), probe.in_features**-0.5, generator)
    optimizer = torch.optim.Adam(probe.parameters(), lr=1e-3, weight_decay=penalty, fused=True)
    train, validation = torch.as_tensor(split.train), torch.as_tensor(split.validation)
    best, n_stale = float("inf"), 0
    for _ in range(100):
        order = train[torch.randperm(len(train), generator=generator)]
        for rows in torch.split(order, 256):
            optimizer.zero_grad()
            F.cross_entropy(probe(inputs[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            scores = probe(inputs[validation])
            loss = float(F.cross_entropy(scores, labels[validation], ignore_index=-1))
        n_stale = 0 if loss < best else n_stale + 1
        best = min(best, loss)
        if n_stale == 10 or best <= target:
            break
    return best


def compare(data: Data, rounds: int, *, peers: tuple[str, ...]) -> dict[str, Any]:
    """Alternate the arms."""
    runs: list[dict[str, Outcome]] = []
    for index in range(rounds):
        reached = ours(data)
        others: dict[str, Callable[[], Outcome]] = {
            "adam, told": lambda told=reached: adam(data, told),  # type: ignore[misc]
            "adam": lambda: adam(data, None),
        }
        run = {"ours": reached}
        for name in peers if index % 2 == 0 else peers[::-1]:
            run[name] = others[name]()
        if index % 2:  # so that ours is last as often as first
            run["ours"] = ours(data)
        runs.append(run)
        print(json.dumps({name: sum(each.seconds.values()) for name, each in run.items()}))
    return {
        "frames": len(data.features),
        "features": data.features.shape[1],
        "classes": list(N_CLASSES),
        "rounds": rounds,
        "machine": machine(),
        "arms": {name: summary(name, runs) for name in ("ours", *peers)},
        "runs": [{name: each._asdict() for name, each in run.items()} for run in runs],
    }


def summary(name: str, runs: list[dict[str, Outcome]]) -> dict[str, float]:
    """Return medians of the seconds and of the ratio to ours, and how many losses were reached."""
    mine = [run for run in runs if name in run]
    total = [sum(run[name].seconds.values()) for run in mine]
    ratios = [t / sum(run["ours"].seconds.values()) for t, run in zip(total, mine, strict=True)]
    losses, targets = mine[0][name].losses, mine[0]["ours"].losses
    return {
        "seconds": statistics.median(total),
        "times_ours": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "mean_loss": statistics.mean(losses.values()),
        "reached": sum(losses[v] <= SLACK * targets[v] + 1e-4 for v in losses),
    }


def table(summary: dict[str, Any]) -> str:
    """Return the medians in Markdown."""
    lines = [
        "| arm | seconds | x ours | lowest to highest | validation loss | variables as good |",
        "|---|---|---|---|---|---|",
    ]
    n_variables = len(summary["classes"])
    for name, arm in summary["arms"].items():
        lines.append(
            f"| {name} | {arm['seconds']:.1f} | {arm['times_ours']:.1f} "
            f"| {arm['lowest']:.1f} to {arm['highest']:.1f} | {arm['mean_loss']:.3f} "
            f"| {arm['reached']} of {n_variables} |"
        )
    return "\n".join(lines)


def limits(data: Data) -> dict[str, float]:
    """Return what the products of one fit take: arithmetic, and speed beside a large product."""
    with FlopCounterMode(display=False) as counter:
        start = time.perf_counter()
        fit_probe(data.features, data.labels, data.split)
        seconds = time.perf_counter() - start
    gflop = counter.get_total_flops() / 1e9
    return {
        "gflop": gflop,
        "gflop_per_second": gflop / seconds,
        "fp32_matmul_gflop_per_second": matmul_speed(),
    }


def limits_table(summary: dict[str, Any]) -> str:
    """Return the arithmetic of ours in Markdown."""
    found = summary["limits"]
    return "\n".join(
        [
            "| GFLOP in products | GFLOP/s | of a large fp32 product |",
            "|---|---|---|",
            f"| {found['gflop']:.0f} | {found['gflop_per_second']:.0f} "
            f"| {found['gflop_per_second'] / found['fp32_matmul_gflop_per_second']:.0%} |",
        ]
    )


def main() -> None:
    """Parse, measure, print, and write the JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=N_FRAMES)
    parser.add_argument("--features", type=int, default=N_FEATURES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=["adam, told", "adam"])
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    warnings.filterwarnings("error", message=".*did not.*")
    data = synthetic(args.frames, args.features)
    result = compare(data, args.rounds, peers=tuple(args.peers))
    result["limits"] = limits(data)
    finish(result, args.output, table(result), limits_table(result))


if __name__ == "__main__":
    main()
