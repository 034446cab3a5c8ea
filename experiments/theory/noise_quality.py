"""Does noise that is closer to the data need fewer noise samples?

The model is an exponential family over V outcomes with a learned normaliser, the noise
q = (1 - a) uniform + a data. `local_nce` fits n data samples with k noise samples each, `exact_nll`
the same data; the error is the divergence of the fit from the truth, in units of what maximum
likelihood is expected to leave. Measured, and as the asymptotic theory has it.

    python experiments/theory/noise_quality.py --output experiments/results/theory
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from exact import mean_and_error
from torch import Tensor

from rl_infonce.nce import CategoricalNoise, exact_nll, local_nce

N_OUTCOMES, N_FEATURES, N_DATA, STRENGTH = 500, 6, 1000, 1.2
SHARES = (0.0, 0.5, 0.9, 1.0)
NOISE_COUNTS = (1, 2, 5, 10, 30, 100)


def make_truth(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return features [V, D] and true parameters [D], float64."""
    features = torch.randn(N_OUTCOMES, N_FEATURES, generator=generator, dtype=torch.float64)
    return features, torch.full((N_FEATURES,), STRENGTH, dtype=torch.float64)


def mixture(log_probs: Tensor, share: float) -> CategoricalNoise:
    """Return q = (1 - share) / V + share * p."""
    return CategoricalNoise(((1 - share) / len(log_probs) + share * log_probs.exp()).log())


def fit(loss: Any, n_parameters: int) -> Tensor:
    """Return what minimises a convex loss of a vector, starting from 0."""
    parameters = torch.zeros(n_parameters, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [parameters], max_iter=200, line_search_fn="strong_wolfe", tolerance_change=1e-12
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = loss(parameters)
        torch.autograd.backward(value)
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return parameters.detach()


def fit_exact(features: Tensor, data: Tensor) -> Tensor:
    """Return the maximum-likelihood estimate [D]."""

    def loss(theta: Tensor) -> Tensor:
        counts = torch.bincount(data, minlength=len(features)).to(theta.dtype)
        every = torch.arange(len(features))
        scores = (features @ theta).expand(len(features), -1)
        return (counts * exact_nll(scores, every, validate_args=False)).sum() / len(data)

    return fit(loss, features.shape[1])


def fit_nce(
    features: Tensor, data: Tensor, noise: CategoricalNoise, k: int, generator: torch.Generator
) -> Tensor:
    """Return the estimate [D] of `local_nce` with a learned log_z."""
    drawn = noise.sample((len(data), k), generator)
    log_q = noise.log_probs  # float64, as everything here

    def loss(parameters: Tensor) -> Tensor:
        scores, log_z = features @ parameters[:-1], parameters[-1]
        args = (scores[data], scores[drawn], log_q[data], log_q[drawn])
        return local_nce(*args, log_z=log_z, validate_args=False).mean()

    return fit(loss, features.shape[1] + 1)[:-1]


def divergence(features: Tensor, truth: Tensor, estimate: Tensor) -> float:
    """Return KL(p(truth) || p(estimate)) in nats."""
    log_p, log_fit = ((features @ theta).log_softmax(dim=0) for theta in (truth, estimate))
    return float((log_p.exp() * (log_p - log_fit)).sum())


def expected_ratio(features: Tensor, truth: Tensor, noise: CategoricalNoise, k: int) -> float:
    """Return the asymptotic divergence of NCE over that of maximum likelihood.

    Gutmann & Hyvarinen 2012, theorem 3: n * covariance = I^-1 with I = E[P g g^T],
    g = (features, -1) and P = k q / (p + k q), less a term that concerns the variance of log_z
    alone; the divergence is half the trace of the D features' part with the Fisher information.
    """
    probs = (features @ truth).softmax(dim=0)
    of_noise = k * noise.log_probs.exp()
    weights = probs * of_noise / (probs + of_noise)  # [V]
    gradients = torch.cat([features, -torch.ones(len(features), 1, dtype=features.dtype)], dim=1)
    covariance = torch.linalg.inv(gradients.T @ (weights[:, None] * gradients))[:-1, :-1]
    centred = features - probs @ features
    fisher = centred.T @ (probs[:, None] * centred)
    return float((fisher * covariance).sum()) / features.shape[1]


def run(n_seeds: int, noise_counts: tuple[int, ...]) -> dict[str, Any]:
    """Return the ratios of every seed, beside those of the asymptotic theory."""
    features, truth = make_truth(torch.Generator().manual_seed(0))
    log_probs = (features @ truth).log_softmax(dim=0)
    noises = {share: mixture(log_probs, share) for share in SHARES}
    unit = N_FEATURES / (2 * N_DATA)  # what maximum likelihood leaves, to first order
    exact: list[float] = []
    found: dict[tuple[float, int], list[float]] = {(a, k): [] for a in SHARES for k in noise_counts}
    for seed in range(n_seeds):
        generator = torch.Generator().manual_seed(seed)
        data = CategoricalNoise(log_probs).sample((N_DATA,), generator)
        exact.append(divergence(features, truth, fit_exact(features, data)) / unit)
        for (share, k), ratios in found.items():
            estimate = fit_nce(features, data, noises[share], k, generator)
            ratios.append(divergence(features, truth, estimate) / unit)
    return {
        "seeds": n_seeds,
        "noise_counts": noise_counts,
        "exact": exact,
        "noise_to_data_nats": {
            str(a): float((log_probs.exp() * (log_probs - q.log_probs)).sum())
            for a, q in noises.items()
        },
        "measured": {str(a): {str(k): found[a, k] for k in noise_counts} for a in SHARES},
        "theory": {
            str(a): {str(k): expected_ratio(features, truth, q, k) for k in noise_counts}
            for a, q in noises.items()
        },
    }


def table(summary: dict[str, Any]) -> str:
    """Return, in Markdown, measured ratios with 95 % intervals, and the theory's in brackets."""
    ks = summary["noise_counts"]
    lines = [
        f"| a | KL(data, noise) | {' | '.join(f'k = {k}' for k in ks)} |",
        "|---|---|" + "---|" * len(ks),
    ]
    for share, measured in summary["measured"].items():
        cells = []
        for k in map(str, ks):
            mean, error = mean_and_error(measured[k])
            cells.append(f"{mean:.2f} +- {error:.2f} ({summary['theory'][share][k]:.2f})")
        nats = max(summary["noise_to_data_nats"][share], 0.0)
        lines.append(f"| {share} | {nats:.2f} | {' | '.join(cells)} |")
    mean, error = mean_and_error(summary["exact"])
    lines.append(f"| exact | - | {mean:.2f} +- {error:.2f} (1.00) |" + " |" * (len(ks) - 1))
    return "\n".join(lines)


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw the ratios against k: points measured, lines theory."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    ks = summary["noise_counts"]
    for index, (share, measured) in enumerate(summary["measured"].items()):
        means, errors = zip(*(mean_and_error(measured[str(k)]) for k in ks), strict=True)
        axis.errorbar(ks, means, errors, fmt="o", ms=4, capsize=2, color=f"C{index}")
        theory = [summary["theory"][share][str(k)] for k in ks]
        axis.plot(ks, theory, color=f"C{index}", lw=1, label=f"a = {share}")
    axis.axhline(1.0, color="k", ls=":", lw=1, label="maximum likelihood")
    axis.set(xscale="log", yscale="log", xlabel="noise samples per data sample k")
    axis.set(
        ylabel="divergence / that of max. likelihood", title="Noise = (1 - a) uniform + a data"
    )
    axis.legend(fontsize=7)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Fit, print the table, write JSON and figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of JSON and figure")
    parser.add_argument("--seeds", type=int, default=60, help="number of seeds")
    parser.add_argument("--noise-counts", type=int, nargs="+", default=NOISE_COUNTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    summary = run(args.seeds, tuple(args.noise_counts))
    (args.output / "noise_quality.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(summary, args.output / "noise_quality.png")
    print(table(summary))


if __name__ == "__main__":
    main()
