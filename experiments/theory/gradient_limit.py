"""Does the gradient of NCE become that of maximum likelihood as the noise samples grow?

Mnih & Teh 2012 ("A Fast and Simple Algorithm for Training Neural Probabilistic Language Models")
say yes, for a normalised model. Five outcomes, uniform noise, autograd through the exact
expectation of `local_nce`; once with normalised scores, once without.

    python experiments/theory/gradient_limit.py --output experiments/results/theory
"""

from __future__ import annotations

from pathlib import Path

import torch
from exact import Result, command, copied, markdown
from torch import Tensor

from rl_infonce.nce import exact_nll, local_nce

P = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03], dtype=torch.float64)
Q = torch.full((5,), 0.2, dtype=torch.float64)
SCORES = torch.tensor([0.2, -0.1, 0.4, 0.0, -0.3], dtype=torch.float64)
N_NOISE = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
SHOWN = (1, 2, 5, 10, 100, 1000, 10000)


def nce_gradient(scores: Tensor, n_noise: int) -> Tensor:
    """Return the ascent direction [V] of the expected `local_nce` in the scores [V]."""
    rows = copied(P[None], Q, n_noise)
    leaf = scores.clone().requires_grad_()
    losses = local_nce(
        leaf[rows.positives], leaf[rows.noise], Q.log()[rows.positives], Q.log()[rows.noise]
    )
    return -torch.autograd.grad(rows.mean(losses), leaf)[0]


def likelihood_gradient(scores: Tensor) -> Tensor:
    """Return the ascent direction [V] of the expected log-likelihood in the scores [V]."""
    leaf = scores.clone().requires_grad_()
    losses = exact_nll(leaf.expand(len(P), -1), torch.arange(len(P)))
    return -torch.autograd.grad((P * losses).sum(), leaf)[0]


def distance(gradient: Tensor, limit: Tensor) -> float:
    """Return the relative L2 error."""
    return float((gradient - limit).norm() / limit.norm())


def compute() -> Result:
    """Measure both models at every number of noise samples."""
    likelihood = likelihood_gradient(SCORES)  # the same with and without normalisation
    limit = P - SCORES.exp()
    rows = []
    for k in N_NOISE:
        normalised = nce_gradient(SCORES.log_softmax(dim=0), k)
        unnormalised = nce_gradient(SCORES, k)
        rows.append(
            {
                "k": k,
                "normalised": distance(normalised, likelihood),
                "cosine": float(torch.cosine_similarity(normalised, likelihood, dim=0)),
                "unnormalised": distance(unnormalised, likelihood),
                "unnormalised_cosine": float(
                    torch.cosine_similarity(unnormalised, likelihood, dim=0)
                ),
                "unnormalised_to_limit": distance(unnormalised, limit),
                "unnormalised_gradient": unnormalised.tolist(),
            }
        )
    return {"likelihood": likelihood.tolist(), "limit": limit.tolist(), "rows": rows}


def table(result: Result) -> str:
    """Return relative errors in Markdown."""
    header = [
        "K",
        "normalised, to likelihood",
        "cosine",
        "unnormalised, to likelihood",
        "cosine",
        "unnormalised, to p - exp s",
    ]
    rows = [
        [
            f"{row['k']}",
            f"{row['normalised']:.4g}",
            f"{row['cosine']:.6f}",
            f"{row['unnormalised']:.4g}",
            f"{row['unnormalised_cosine']:.4f}",
            f"{row['unnormalised_to_limit']:.4g}",
        ]
        for row in result["rows"]
        if row["k"] in SHOWN
    ]
    return markdown(header, rows)


def draw(result: Result, path: Path) -> None:
    """Draw relative errors against the number of noise samples."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    k = [row["k"] for row in result["rows"]]
    for name, style, label in (
        ("normalised", "C0o-", "normalised model, to the likelihood gradient"),
        ("unnormalised", "C3s-", "unnormalised model, to the likelihood gradient"),
        ("unnormalised_to_limit", "C1^-", "unnormalised model, to p - exp s"),
    ):
        axes.plot(k, [row[name] for row in result["rows"]], style, label=label, ms=4)
    axes.plot(k, [1 / n for n in k], "k:", lw=1, label="1 / K")
    axes.set(xscale="log", yscale="log", xlabel="noise samples K", ylabel="relative L2 error")
    axes.set_title("The NCE gradient becomes that of maximum likelihood")
    axes.legend(fontsize=7, loc="lower left")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    command(__file__, __doc__, compute, table, draw)
