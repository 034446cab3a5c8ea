"""How good are estimates of mutual information, even from the best possible critic?

Correlated Gaussians in 20 dimensions (Poole et al. 2019, "On Variational Bounds of Mutual
Information", sec. 3), whose information is known, scored by log p(y|x) - log p(y) itself: nothing
is trained, so that all bias and variance is the estimator's own. Batches of N pairs, the other
N - 1 as negatives; float64.

    python experiments/theory/gaussian_information.py --output experiments/results/theory
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from exact import Result, command, markdown
from torch import Tensor

from rl_infonce.nce import (
    dv_estimate,
    info_nce_bound,
    nwj_bound,
    smile_estimate,
    symmetric_info_nce,
)

DIM = 20
INFORMATION = (2.0, 4.0, 6.0, 8.0, 10.0)
N_BATCHES = {64: 3000, 128: 1000, 512: 64}
ENTRIES_AT_ONCE = 2**20


def symmetric_bound(scores: Tensor) -> Tensor:
    """Return log N - symmetric InfoNCE [...]."""
    return math.log(scores.shape[-1]) - symmetric_info_nce(scores).mean(dim=-1)


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "InfoNCE": info_nce_bound,
    "symmetric": symmetric_bound,
    "NWJ": nwj_bound,
    "DV": dv_estimate,
    "SMILE 1": partial(smile_estimate, clip=1.0),
    "SMILE 5": partial(smile_estimate, clip=5.0),
}


def draw_pairs(
    information: float, shape: tuple[int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return x and y [batches, N, DIM] with the given mutual information in nats."""
    rho = correlation(information)
    x, noise = torch.randn(2, *shape, DIM, generator=generator, dtype=torch.float64)
    return x, rho * x + math.sqrt(1 - rho**2) * noise


def correlation(information: float) -> float:
    """Return the correlation per dimension: information = -DIM/2 log(1 - rho^2)."""
    return math.sqrt(-math.expm1(-2 * information / DIM))


def optimal_scores(x: Tensor, y: Tensor, information: float) -> Tensor:
    """Return log p(y_j | x_i) - log p(y_j) [..., N, N] of x and y [..., N, DIM]."""
    rho = correlation(information)
    x_square, y_square = x.square().sum(dim=-1)[..., :, None], y.square().sum(dim=-1)[..., None, :]
    distance = y_square - 2 * rho * (x @ y.mT) + rho**2 * x_square
    return information - distance / (2 * (1 - rho**2)) + y_square / 2


def estimates(information: float, n_pairs: int, n_batches: int, seed: int) -> dict[str, Tensor]:
    """Return every estimator's value on each of `n_batches` fresh batches of `n_pairs`."""
    generator = torch.Generator().manual_seed(seed)
    at_once = max(1, ENTRIES_AT_ONCE // n_pairs**2)
    found: dict[str, list[Tensor]] = {name: [] for name in ESTIMATORS}
    for start in range(0, n_batches, at_once):
        shape = (min(at_once, n_batches - start), n_pairs)
        scores = optimal_scores(*draw_pairs(information, shape, generator), information)
        for name, estimator in ESTIMATORS.items():
            found[name].append(estimator(scores))
    return {name: torch.cat(values) for name, values in found.items()}


def exact_nwj_std(information: float, n_pairs: int) -> float:
    """Return the standard deviation of `nwj_bound` over batches, which samples rarely show.

    The first term has variance DIM rho^2 / N. The off-diagonal ratios r have mean 1 given either
    side, so only r(x_i, y_j) with itself and with r(x_j, y_i) are correlated: by Mehler's expansion
    of r, E r^2 = (1 - rho^2)^-DIM = exp(2 information) and E r r' = (1 - rho^4)^-DIM.
    """
    square = correlation(information) ** 2
    moments = (1 - square) ** -DIM + (1 - square**2) ** -DIM - 2
    return math.sqrt(DIM * square / n_pairs + moments / (n_pairs * (n_pairs - 1)))


def compute() -> Result:
    """Measure the mean and the standard deviation over batches of every estimator."""
    rows = []
    for n_pairs, n_batches in N_BATCHES.items():
        for information in INFORMATION:
            found = estimates(information, n_pairs, n_batches, seed=n_pairs + int(information))
            rows.append(
                {
                    "n": n_pairs,
                    "batches": n_batches,
                    "information": information,
                    "mean": {name: float(value.mean()) for name, value in found.items()},
                    "std": {name: float(value.std()) for name, value in found.items()},
                    "nwj_std": exact_nwj_std(information, n_pairs),
                }
            )
    return {"dim": DIM, "rows": rows}


def table(result: Result) -> str:
    """Return mean and standard deviation over batches in Markdown."""
    rows = [
        [
            f"{row['n']} ({math.log(row['n']):.2f})",
            f"{row['information']:g}",
            *(f"{row['mean'][name]:.2f} +- {row['std'][name]:.2f}" for name in ESTIMATORS),
            f"{row['nwj_std']:.2f}",
        ]
        for row in result["rows"]
    ]
    return markdown(["N (log N)", "truth", *ESTIMATORS, "NWJ, exact std"], rows)


def draw(result: Result, path: Path) -> None:
    """Draw estimates and their spread against the truth."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
    for index, n_pairs in enumerate(N_BATCHES):
        rows = [row for row in result["rows"] if row["n"] == n_pairs]
        truth = [row["information"] for row in rows]
        means = [row["mean"]["InfoNCE"] for row in rows]
        axes[0].plot(truth, means, f"C{index}o-", ms=4, label=f"N = {n_pairs}")
        axes[0].axhline(math.log(n_pairs), color=f"C{index}", ls=":", lw=1)
        exact, sampled = [r["nwj_std"] for r in rows], [r["std"]["NWJ"] for r in rows]
        axes[2].plot(truth, exact, f"C{index}-", label=f"NWJ, exact, N = {n_pairs}")
        axes[2].plot(truth, sampled, f"C{index}s:", ms=3, lw=1, label="NWJ, in these batches")
        spread = [row["std"]["InfoNCE"] for row in rows]
        axes[2].plot(truth, spread, f"C{index}o--", ms=3, lw=1, label="InfoNCE")
    rows = [row for row in result["rows"] if row["n"] == 64]
    for index, name in enumerate(ESTIMATORS):
        if name != "symmetric":
            values = [[row[of][name] for row in rows] for of in ("mean", "std")]
            shifted = [row["information"] + 0.12 * (index - 2) for row in rows]
            axes[1].errorbar(shifted, *values, fmt="o-", ms=3, lw=1, capsize=2, label=name)
    for panel in axes[:2]:
        panel.plot([0, 11], [0, 11], "k", lw=0.7)
        panel.set(xlabel="true information (nats)", ylabel="estimate (nats)", ylim=(0, 15))
    axes[0].set(title="InfoNCE; dotted: log N", ylim=(0, 11))
    axes[1].set(title="N = 64, mean and std over batches")
    axes[2].set(xlabel="true information (nats)", ylabel="std over batches", yscale="log")
    axes[2].set(title="Spread of one batch's estimate")
    for panel in axes:
        panel.legend(fontsize=6)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    command(__file__, __doc__, compute, table, draw)
