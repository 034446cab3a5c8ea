"""What does each estimator identify, and how fast, where everything is known?

Three contexts, five outcomes, a free table of scores and a skewed noise distribution q. (a) The
exact optimum of every loss: expectations over all samples, float64, L-BFGS. (b) Training on sampled
batches with SGD and Adam, and how far what was learned is from the truth. Scores are read as the
docstrings of the losses say, and also naively: as if their softmax were the answer.

    python experiments/theory/toy_categorical.py --output experiments/results/theory
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from exact import Result, Rows, command, enumerated, markdown, minimise, zeros
from torch import Tensor
from toy_estimators import ESTIMATORS, JOINT, LOG_Q, P_CONTEXT, TRUTH, Estimator

from rl_infonce.nce import CategoricalNoise

N_SEEDS, BATCH_SIZE, N_STEPS = 10, 64, 2000
TRAINED = [(name, 10) for name in ESTIMATORS]
TRAINED.insert(2, ("partition NLL", 100))
OPTIMISERS: dict[str, tuple[Any, float]] = {
    "SGD": (torch.optim.SGD, 0.5),
    "Adam": (torch.optim.Adam, 0.02),
}


def optimum(estimator: Estimator, n_noise: int) -> tuple[float, Tensor, Tensor]:
    """Return the least expected loss, the scores [C, V] and log Z that reach it."""
    rows = enumerated(JOINT, LOG_Q.exp(), n_noise)
    scores, log_z = zeros(*JOINT.shape), zeros()
    parameters = [scores, log_z] if estimator.learns_log_z else [scores]
    least = minimise(parameters, lambda: rows.mean(estimator.loss(scores, log_z, rows)))
    return least, scores.detach(), log_z.detach()


def kl(log_p: Tensor) -> Tensor:
    """Return KL(truth || softmax log_p) averaged over contexts: [...] of [..., C, V]."""
    gap = TRUTH.log() - log_p.log_softmax(dim=-1)
    return (P_CONTEXT * (TRUTH * gap).sum(dim=-1)).sum(dim=-1)


def sampled_rows(noise: CategoricalNoise, n_noise: int, generator: torch.Generator) -> Rows:
    """Return one batch per seed; the contexts of seed i are C i to C i + C - 1."""
    n_rows = N_SEEDS * BATCH_SIZE
    pairs = torch.multinomial(JOINT.flatten(), n_rows, replacement=True, generator=generator)
    n_contexts, n_outcomes = JOINT.shape
    seeds = torch.arange(N_SEEDS).repeat_interleave(BATCH_SIZE)
    return Rows(
        contexts=n_contexts * seeds + pairs // n_outcomes,
        positives=pairs % n_outcomes,
        noise=noise.sample((n_rows, n_noise), generator),
        weights=torch.full((n_rows,), 1 / BATCH_SIZE, dtype=torch.float64),
    )


def train(name: str, n_noise: int, optimiser_name: str, n_steps: int = N_STEPS) -> Result:
    """Train all seeds at once on batches with K noise samples per positive.

    Returns:
        The recorded steps and, for each: `kl` mean, least and largest over seeds of the scores
        read as documented; `naive_kl` mean, of the scores as they are; `log_z` mean per context.
    """
    estimator = ESTIMATORS[name]
    generator = torch.Generator().manual_seed(0)
    noise = CategoricalNoise(LOG_Q)
    n_contexts, n_outcomes = JOINT.shape
    scores, log_z = zeros(N_SEEDS * n_contexts, n_outcomes), zeros(N_SEEDS)
    build, rate = OPTIMISERS[optimiser_name]
    optimiser = build([scores, log_z] if estimator.learns_log_z else [scores], lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / n_steps)
    recorded = sorted({round(n_steps ** (i / 40)) for i in range(41)})
    curves: dict[str, list[Any]] = {"kl": [], "naive_kl": [], "log_z": []}
    for step in range(1, n_steps + 1):
        rows = sampled_rows(noise, n_noise, generator)
        optimiser.zero_grad()
        loss = rows.mean(estimator.loss(scores, log_z[rows.contexts // n_contexts], rows))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if step in recorded:
            per_seed = scores.detach().reshape(N_SEEDS, n_contexts, n_outcomes)
            constants = log_z.detach()[:, None, None]
            divergence = kl(estimator.read(per_seed, constants, n_noise))
            curves["kl"].append(_rounded(divergence.mean(), divergence.amin(), divergence.amax()))
            curves["naive_kl"].extend(_rounded(kl(per_seed).mean()))
            per_context = (per_seed - constants).logsumexp(dim=-1).mean(dim=0)
            curves["log_z"].append(_rounded(*per_context))
    return {"steps": recorded, **curves}


def _rounded(*values: Tensor) -> list[float]:
    return [float(f"{float(value):.4g}") for value in values]


def compute() -> Result:
    """Find every optimum, then train with every estimator and optimiser."""
    fits = []
    for name, estimator in ESTIMATORS.items():
        for k in estimator.n_noise:
            least, scores, log_z = optimum(estimator, k)
            read = estimator.read(scores, log_z, k)
            fits.append(
                {
                    "estimator": name,
                    "k": k,
                    "optimum": least,
                    "naive_error": float((scores.softmax(dim=1) - TRUTH).abs().max()),
                    "error": float((read.softmax(dim=1) - TRUTH).abs().max()),
                    "z": (scores - log_z).logsumexp(dim=1).exp().tolist(),
                }
            )
    training = {
        optimiser: {f"{name}, K={k}": train(name, k, optimiser) for name, k in TRAINED}
        for optimiser in OPTIMISERS
    }
    return {"fits": fits, "training": training}


def table(result: Result) -> str:
    """Return the exact optima in Markdown."""
    header = ["estimator", "K", "optimum", "softmax(s), error", "as documented, error", "Z(c)"]
    rows = [
        [
            fit["estimator"],
            "-" if fit["estimator"] == "exact NLL" else str(fit["k"]),
            f"{fit['optimum']:.6f}",
            f"{fit['naive_error']:.1e}",
            f"{fit['error']:.1e}",
            ", ".join(f"{z:.4f}" for z in fit["z"]),
        ]
        for fit in result["fits"]
    ]
    return markdown(header, rows)


def training_table(result: Result) -> str:
    """Return the divergence after training, mean and range over seeds, in Markdown."""
    header = [
        "estimator",
        "K",
        *(f"{name}, {what}" for name in OPTIMISERS for what in ("KL", "log Z")),
    ]
    rows = []
    for name, k in TRAINED:
        cells = [name, "-" if name == "exact NLL" else str(k)]
        for optimiser in OPTIMISERS:
            run = result["training"][optimiser][f"{name}, K={k}"]
            mean, least, largest = run["kl"][-1]
            cells.append(f"{mean:.1e} ({least:.1e} to {largest:.1e})")
            log_z = ", ".join(f"{z:.2f}" for z in run["log_z"][-1])
            cells.append(log_z.replace("-0.00", "0.00"))
        rows.append(cells)
    return markdown(header, rows)


def draw(result: Result, path: Path) -> None:
    """Draw divergence and log Z over training."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for panel, (optimiser, runs) in zip(axes, result["training"].items(), strict=False):
        for index, (name, run) in enumerate(runs.items()):
            label = name.removesuffix(", K=10")
            panel.plot(run["steps"], [kl[0] for kl in run["kl"]], f"C{index}", lw=1.2, label=label)
            if ESTIMATORS[name.rpartition(",")[0]].q_power:
                panel.plot(run["steps"], run["naive_kl"], f"C{index}:", lw=1.2)
        panel.set(xscale="log", yscale="log", xlabel="steps", title=f"{optimiser}, K = 10")
        panel.set(ylabel="KL(truth, learned), nats")
    corner = {"transform": axes[0].transAxes, "fontsize": 7}
    axes[0].text(0.03, 0.03, "dotted: softmax(s) taken as it is", **corner)
    for index, run in enumerate(result["training"]["Adam"].values()):
        axes[2].plot(run["steps"], run["log_z"], f"C{index}", lw=1)
    axes[2].axhline(0.0, color="k", lw=0.7)
    axes[2].set(xscale="log", xlabel="steps", ylabel="log Z(c), each context", title="Adam: log Z")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=7)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    command(__file__, __doc__, compute, lambda r: f"{table(r)}\n\n{training_table(r)}", draw)
