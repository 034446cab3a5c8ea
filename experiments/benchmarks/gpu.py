"""What a GPU makes of the loss: training, contrastive losses, pretraining and probes.

One process measures everything on one device, within its minutes. The arms of a section take turns
after one untimed turn each, as often as the section's share of the time allows, and at least once;
ratios are taken within a turn. PPO (8 environments, 128 steps, batches of 256) and DQN (batches of
32, an update every 4 steps) train on Pong: `stock` is NatureCNN, `off` the same network with
`infonce_coef=0`, `buffer` and `minibatch` say where pairs come from, and extractors of `compiled`
arms are compiled by torch. All but `stock_env` have our vector environment. The losses are those of
contrast_speed.py, beside three matrix products of N^2 times 128 multiply-adds, the least that
scores and gradients take.

    pip install info-nce-pytorch
    python experiments/benchmarks/gpu.py --output experiments/results/gpu.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import stable_baselines3
import torch
from contrast_speed import DIM, info_nce_pytorch, linear_cross_entropy, time_once
from contrast_speed import ours as our_contrast
from contrast_tiles import products
from output import machine, save
from pretrain_speed import frames
from pretrain_speed import ours as our_pretraining
from probe_speed import synthetic
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack
from torch import Tensor
from torch.nn import functional

from rl_infonce import InfoNCEExtractor, make_atari_vec_env
from rl_infonce.device import hardware_name, has_fast_bf16, usable_device
from rl_infonce.probing import fit_probe
from rl_infonce.training.rl_zoo import DQN_SETTINGS, PPO_SIZES

Turn = Callable[[], float]
"""Does some work and returns how many units of it."""

ARMS = ("stock_env", "stock", "off", "buffer", "minibatch", "off bf16", "minibatch bf16")
COMPILED = ("off compiled", "minibatch compiled")
SHARES = {"PPO": 0.3, "DQN": 0.25, "contrast": 0.2, "pretraining": 0.15, "probes": 0.1}
SIZES: dict[str, dict[str, Any]] = {
    "PPO": PPO_SIZES,
    "DQN": {**DQN_SETTINGS, "buffer_size": 10_000, "learning_starts": 1_000},
}
N_STEPS = {"PPO": 1024, "DQN": 256}
"""Environment steps of a turn: about a second on a GPU."""

SMALL: dict[str, dict[str, Any]] = {
    "PPO": {"n_steps": 16, "batch_size": 64, "n_epochs": 1},
    "DQN": {**SIZES["DQN"], "buffer_size": 500, "learning_starts": 50},
}


def alternate(
    arms: Mapping[str, Turn], device: torch.device, seconds: float
) -> dict[str, list[float]]:
    """Return units per second of each arm in each turn, as many turns as fit."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    for each in arms.values():
        each()
    synchronize(device)
    end = time.perf_counter() + seconds
    turn = 0
    while turn == 0 or time.perf_counter() < end:
        for name in [*arms] if turn % 2 == 0 else [*arms][::-1]:
            start = time.perf_counter()
            n_units = arms[name]()
            synchronize(device)
            found[name].append(n_units / (time.perf_counter() - start))
        turn += 1
    return found


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def trainer(
    algorithm: str, arm: str, device: torch.device, n_steps: int, sizes: Mapping[str, Any]
) -> Turn:
    """Return what trains an arm for some steps.

    Args:
        algorithm: "PPO" or "DQN".
        arm: What trains, and how.
        device: Where.
        n_steps: Environment steps of a turn.
        sizes: Arguments of the algorithm.
    """
    kind, *how = arm.split()
    n_envs = 8 if algorithm == "PPO" else 1
    env: Any
    if kind == "stock_env":
        env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=n_envs, seed=0), 4)
    else:
        env = make_atari_vec_env("pong", n_envs=n_envs, seed=0)
    policy_kwargs: dict[str, Any] = {"net_arch": []}
    if not kind.startswith("stock"):
        policy_kwargs["features_extractor_class"] = InfoNCEExtractor
        policy_kwargs["features_extractor_kwargs"] = {
            "infonce_coef": 0.0 if kind == "off" else 0.01,
            "pairs_from": "minibatch" if kind == "minibatch" else "buffer",
            "precision": "bf16" if "bf16" in how else "fp32",
        }
    rest: dict[str, Any] = {"policy_kwargs": policy_kwargs, "device": device, "seed": 0}
    if algorithm == "PPO":
        model: Any = PPO("CnnPolicy", env, **sizes, **rest)
    else:
        model = DQN("CnnPolicy", env, **sizes, **rest)
        model.learn(model.learning_starts)
    if "compiled" in how:
        for module in model.policy.modules():
            if isinstance(module, BaseFeaturesExtractor):
                module.compile()

    def turn() -> float:
        model.learn(n_steps, reset_num_timesteps=False)
        return n_steps

    return turn


def training(
    algorithm: str, device: torch.device, seconds: float, *, smoke: bool
) -> dict[str, list[float]]:
    """Return environment steps per second of each arm."""
    n_steps, sizes = (128, SMALL[algorithm]) if smoke else (N_STEPS[algorithm], SIZES[algorithm])
    arms: tuple[str, ...] = ARMS
    if not has_fast_bf16(device):
        arms = tuple(each for each in arms if "bf16" not in each)
    if smoke:
        arms = arms[-2:]
    elif device.type == "cuda":
        arms += COMPILED
    turns = {arm: trainer(algorithm, arm, device, n_steps, sizes) for arm in arms}
    return alternate(turns, device, seconds)


def contrast_arms() -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    """Yield the losses, without those whose package is missing."""
    yield "ours", our_contrast(symmetric=False)
    try:
        yield "info-nce-pytorch", info_nce_pytorch()
    except SystemExit as missing:
        print(missing)
    if hasattr(functional, "linear_cross_entropy"):
        yield "linear_cross_entropy", linear_cross_entropy


def one_loss(
    loss: Callable[[Tensor, Tensor], Tensor], anchors: Tensor, candidates: Tensor
) -> float:
    """Compute one loss and its gradients."""
    time_once(loss, anchors, candidates, 1)
    return 1


def products_once(anchors: Tensor, candidates: Tensor) -> float:
    """Multiply as the scores and both gradients of one loss do."""
    products(anchors, candidates)
    return 1


def contrast(
    device: torch.device, seconds: float, *, sizes: tuple[int, ...]
) -> dict[str, dict[str, Any]]:
    """Return, by batch size, milliseconds of each loss in each turn and its peak memory."""
    found = {}
    for n in sizes:
        generator = torch.Generator(device).manual_seed(0)
        anchors, candidates = (
            torch.randn(n, DIM, generator=generator, device=device).requires_grad_()
            for _ in range(2)
        )

        arms: dict[str, Turn] = {"three products": partial(products_once, anchors, candidates)}
        peak = {}
        for name, loss in contrast_arms():
            turn = partial(one_loss, loss, anchors, candidates)
            peak[name] = peak_mb(turn, device)
            if peak[name] is not None:
                arms[name] = turn
        per_second = alternate(arms, device, seconds / len(sizes))
        times = {name: [1000 / each for each in runs] for name, runs in per_second.items()}
        found[str(n)] = {"ms": times, "peak_mb": peak}
    return found


def peak_mb(work: Turn, device: torch.device) -> float | None:
    """Return the peak of the GPU's memory in MB: 0 on a CPU, None if it does not fit."""
    if device.type != "cuda":
        return 0.0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        work()
    except torch.cuda.OutOfMemoryError:
        return None
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6


def pretraining(
    device: torch.device, seconds: float, *, batch_size: int | None
) -> dict[str, list[float]]:
    """Return frames per second of ST-DIM."""
    data = frames()
    arms = {
        "stdim, fp32": our_pretraining(
            "stdim", data, half=False, batch_size=batch_size, device=device
        )
    }
    if has_fast_bf16(device):
        arms["stdim, bf16"] = our_pretraining(
            "stdim", data, half=True, batch_size=batch_size, device=device
        )
    return alternate(arms, device, seconds)


def probes(device: torch.device, seconds: float, *, n_frames: int) -> dict[str, list[float]]:
    """Return fits of all variables per second."""
    data = synthetic(n_frames, 512)

    def fit() -> float:
        fit_probe(data.features, data.labels, data.split, protocol="converged", device=device)
        return 1

    return alternate({"converged probes": fit}, device, seconds)


def measure(device: torch.device, minutes: float, *, smoke: bool) -> Iterator[dict[str, Any]]:
    """Yield every figure so far, and what it was measured on, after each section."""
    seconds = {name: 60 * minutes * share for name, share in SHARES.items()}
    sizes = (64, 128) if smoke else (1024, 4096, 16384, 65536)
    sections: dict[str, Callable[[float], Any]] = {
        "PPO": partial(training, "PPO", device, smoke=smoke),
        "DQN": partial(training, "DQN", device, smoke=smoke),
        "contrast": partial(contrast, device, sizes=sizes),
        "pretraining": partial(pretraining, device, batch_size=4 if smoke else None),
        "probes": partial(probes, device, n_frames=2_000 if smoke else 50_000),
    }
    start = time.perf_counter()
    this = machine(device=hardware_name(device), stable_baselines3=stable_baselines3.__version__)
    found: dict[str, Any] = {"machine": this}
    for name, section in sections.items():
        found[name] = section(seconds[name])
        this["seconds"] = time.perf_counter() - start
        yield found


def tables(summary: Mapping[str, Any]) -> str:
    """Return the medians of what was measured in Markdown, with the lowest and highest turn."""
    parts = []
    for name in (each for each in SHARES if each in summary and each != "contrast"):
        lines = [
            f"| {name} | per second | lowest to highest | times its off |",
            "|---|---|---|---|",
        ]
        for arm, runs in summary[name].items():
            kind, *how = arm.split()
            baseline = summary[name].get(" ".join(["off", *how]))
            ratio = "-"
            if baseline is not None and not kind.startswith("stock"):
                of_turns = zip(runs, baseline, strict=True)
                ratio = f"{statistics.median(a / b for a, b in of_turns):.2f}"
            spread = f"{min(runs):.4g} to {max(runs):.4g}"
            lines.append(f"| {arm} | {statistics.median(runs):.4g} | {spread} | {ratio} |")
        parts.append("\n".join(lines))
    if "contrast" not in summary:
        return "\n\n".join(parts)
    lines = ["| N | loss | ms | times three products | peak memory, MB |", "|---|---|---|---|---|"]
    for n, each in summary["contrast"].items():
        least = each["ms"]["three products"]
        for arm, peak in each["peak_mb"].items():
            if peak is None:
                lines.append(f"| {n} | {arm} | - | - | does not fit |")
                continue
            runs = each["ms"][arm]
            ratio = statistics.median(a / b for a, b in zip(runs, least, strict=True))
            lines.append(
                f"| {n} | {arm} | {statistics.median(runs):.3g} | {ratio:.2f} | {peak:.0f} |"
            )
    return "\n\n".join([*parts, "\n".join(lines)])


def main() -> None:
    """Parse, measure, print, and write the JSON after each section if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=6.0, help="for turns, beside the first")
    parser.add_argument("--smoke", action="store_true", help="one small turn of some arms")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    minutes = 0.0 if args.smoke else args.minutes
    for summary in measure(usable_device(args.device), minutes, smoke=args.smoke):
        *_, latest = summary
        print(f"{latest} after {summary['machine']['seconds']:.0f} s", flush=True)
        save(summary, args.output)  # whatever ends it, the sections that were measured stay
    print(tables(summary))


if __name__ == "__main__":
    main()
