"""How a loss of small gradients can rule the encoder: RL's own are mostly noise.

While PPO trains on MinAtar's Breakout, its weights are held still now and then, and the gradients
of both losses on the encoder are taken on many minibatches. Their mean over minibatches is what
moves the weights; the rest is noise, and Adam averages it away.

    python experiments/gradient_signal.py run --output experiments/results/gradient_signal.json
    python experiments/gradient_signal.py table --output experiments/results/gradient_signal.json
"""

from __future__ import annotations

import argparse
import io
import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from minatar_arms import CANDIDATES, make_env, make_model
from stable_baselines3 import PPO
from torch import Tensor

from rl_infonce import InfoNCEExtractor
from rl_infonce.objective import TemporalInfoNCELoss
from rl_infonce.runs.durable import replace_text
from rl_infonce.runs.run_directory import software
from rl_infonce.sb3.experience import Experience

ARMS, SEEDS = ("coef_01", "coef_001", "placebo_01"), (100, 101, 102)
MARKS, N_MINIBATCHES = (20_000, 50_000, 100_000), 64


def norms(gradients: Sequence[Tensor]) -> dict[str, float]:
    """Return the root mean square norm of N gradients [P], and the norm of their expectation.

    The expectation's square is estimated without bias, by products of different minibatches; if
    noise turns it negative, the norm is 0.
    """
    n = len(gradients)
    squares = float(torch.stack([g.square().sum() for g in gradients]).sum())
    square_of_sum = float(torch.stack(list(gradients)).sum(dim=0).square().sum())
    signal = (square_of_sum - squares) / (n * (n - 1))
    return {"minibatch": (squares / n) ** 0.5, "mean": max(signal, 0.0) ** 0.5}


def measure(model: PPO, n_minibatches: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the norms of the encoder's gradients, of RL and of the weighted loss, on a copy."""
    saved = io.BytesIO()
    model.save(saved)
    saved.seek(0)
    still = {"learning_rate": 0.0, "n_epochs": 1, "max_grad_norm": math.inf}
    copy = PPO.load(saved, make_env("breakout", seed), device="cpu", custom_objects=still)
    extractor = cast(InfoNCEExtractor, copy.policy.features_extractor)
    coef, extractor.infonce_coef = extractor.infonce_coef, 0.0
    encoder = list(extractor.encoder_parameters().values())
    found: dict[str, list[Tensor]] = {"rl": [], "infonce": []}

    def take(*_: object) -> None:
        with torch.enable_grad():
            result = cast(
                TemporalInfoNCELoss,
                extractor.infonce_loss(cast(Experience, extractor.experience())),
            )
            gradients = torch.autograd.grad(coef * result.loss, encoder)
        found["infonce"].append(torch.cat([each.flatten() for each in gradients]))
        found["rl"].append(torch.cat([p.grad.flatten() for p in encoder if p.grad is not None]))

    copy.policy.optimizer.register_step_pre_hook(take)
    copy.learn(n_minibatches * copy.batch_size)
    return {loss: norms(gradients) for loss, gradients in found.items()}


def run(arm: str, seed: int, marks: Sequence[int], n_minibatches: int) -> list[dict[str, Any]]:
    """Train an agent and measure it at some steps."""
    model = make_model(make_env("breakout", seed), CANDIDATES[arm], seed)
    rows = []
    for mark in marks:
        model.learn(mark - model.num_timesteps, reset_num_timesteps=False)
        found = measure(model, n_minibatches, seed + 1000)
        rows.append({"arm": arm, "seed": seed, "step": mark, **found})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the medians over seeds."""
    lines = [
        "| arm | step | one minibatch: RL | loss | loss / RL | their mean: RL | loss | loss / RL |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, step in dict.fromkeys((row["arm"], row["step"]) for row in rows):
        own = [row for row in rows if (row["arm"], row["step"]) == (arm, step)]
        cells = []
        for kind in ("minibatch", "mean"):
            rl, loss = ([row[of][kind] for row in own] for of in ("rl", "infonce"))
            ratios = [b / a if a else math.inf for a, b in zip(rl, loss, strict=True)]
            cells += [f"{median(rl):.3f}", f"{median(loss):.3f}", f"{median(ratios):.2f}"]
        lines.append(f"| {arm} | {step:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("run", "table"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--marks", nargs="+", type=int, default=MARKS)
    parser.add_argument("--minibatches", type=int, default=N_MINIBATCHES)
    arguments = parser.parse_args()
    if arguments.stage == "run":
        torch.set_num_threads(1)
        rows = [
            row
            for arm, seed in product(arguments.arms, arguments.seeds)
            for row in run(arm, seed, arguments.marks, arguments.minibatches)
        ]
        about = {"minibatches": arguments.minibatches, **software()}
        replace_text(arguments.output, json.dumps({**about, "rows": rows}, indent=1) + "\n")
    print(table(json.loads(arguments.output.read_text())["rows"]))


if __name__ == "__main__":
    main()
