"""Which noise-contrastive estimators are consistent when Z(c) cannot be absorbed by the model?

A counterexample to binary NCE in the sense of Ma & Collins 2018 ("Noise Contrastive Estimation and
Negative Sampling for Conditional Models"): scores theta f(c, x) with one parameter, truth theta =
1, log Z(c) = 3.44 and 1.44, so that no single constant normalises both contexts. Exact
expectations, float64, L-BFGS from zero: what is off here is off with infinite data.

    python experiments/theory/ranking_consistency.py --output experiments/results/theory
"""

from __future__ import annotations

from pathlib import Path

import torch
from exact import (
    Result,
    command,
    copied,
    enumerated,
    markdown,
    minimise,
    zeros,
)
from torch import Tensor

from rl_infonce.nce import local_nce, ranking_nce

FEATURES = torch.tensor([[0.0, 1, 2, 3], [0, -1, -2, 1]], dtype=torch.float64)
Q = torch.full((4,), 0.25, dtype=torch.float64)
JOINT = 0.5 * FEATURES.softmax(dim=1)
LOG_Z = FEATURES.logsumexp(dim=1)
RANKING_K = (1, 2, 3, 5, 10, 20)
BINARY_K = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SHOWN_K = {"ranking": (1, 5, 20), "binary": (1, 5, 50, 1000)}
CONSTANTS = {"none": 0, "one learned": 1, "per context": 2}
LABELS = {
    "none": "binary, no constant",
    "one learned": "binary, one learned constant",
    "per context": "binary, one constant per context",
}


def fit_ranking(n_noise: int) -> float:
    """Return theta-hat of `ranking_nce` with K noise samples."""
    rows = enumerated(JOINT, Q, n_noise)
    theta = zeros()

    def loss() -> Tensor:
        scores = theta * FEATURES[rows.contexts]  # [R, V]
        positive = scores.gather(1, rows.positives[:, None])[:, 0]
        noise = scores.gather(1, rows.noise)
        return rows.mean(ranking_nce(positive, noise, Q.log()[rows.positives], Q.log()[rows.noise]))

    minimise([theta], loss)
    return float(theta.detach())


def fit_binary(n_noise: int, constants: str) -> tuple[float, list[float]]:
    """Return theta-hat and gamma-hat of `local_nce` with K noise samples.

    Args:
        n_noise: K.
        constants: A key of `CONSTANTS`, what is learned for log Z(c).
    """
    rows = copied(JOINT, Q, n_noise)
    theta, gamma = zeros(), zeros(CONSTANTS[constants])

    def loss() -> Tensor:
        scores = theta * FEATURES[rows.contexts]  # [R, V]
        log_z = gamma.sum() if len(gamma) < 2 else gamma[rows.contexts]
        losses = local_nce(
            scores.gather(1, rows.positives[:, None])[:, 0],
            scores.gather(1, rows.noise),
            Q.log()[rows.positives],
            Q.log()[rows.noise],
            log_z=log_z,
        )
        return rows.mean(losses)

    minimise([theta, gamma] if len(gamma) else [theta], loss)
    return float(theta.detach()), gamma.tolist()


def compute() -> Result:
    """Fit every estimator for every number of noise samples."""
    fits = [
        {"estimator": "ranking", "k": k, "theta": fit_ranking(k), "gamma": []} for k in RANKING_K
    ]
    for constants, label in LABELS.items():
        for k in BINARY_K:
            theta, gamma = fit_binary(k, constants)
            fits.append({"estimator": label, "k": k, "theta": theta, "gamma": gamma})
    return {"log_z": LOG_Z.tolist(), "fits": fits}


def table(result: Result) -> str:
    """Return estimates beside the truth in Markdown."""
    rows = [
        [
            fit["estimator"],
            str(fit["k"]),
            f"{fit['theta']:.4f}",
            ", ".join(f"{gamma:.4f}" for gamma in fit["gamma"]) or "-",
        ]
        for fit in result["fits"]
        if fit["k"] in SHOWN_K[fit["estimator"].split(",")[0]]
    ]
    truth = ["truth", "-", "1.0000", ", ".join(f"{z:.4f}" for z in result["log_z"])]
    return markdown(["estimator", "K", "theta", "log Z"], [truth, *rows])


def draw(result: Result, path: Path) -> None:
    """Draw theta-hat against K."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    axes.axhline(1.0, color="k", ls=":", lw=1, label="truth")
    styles = dict(
        zip(["ranking", *LABELS.values()], ["C2o-", "C3s-", "C1^-", "C0x--"], strict=True)
    )
    for name, style in styles.items():
        fits = [fit for fit in result["fits"] if fit["estimator"] == name]
        axes.plot([f["k"] for f in fits], [f["theta"] for f in fits], style, label=name, ms=5)
    axes.set(xscale="log", xlabel="noise samples per data sample", ylabel="estimate of theta")
    axes.set_title("More noise does not cure a missing constant")
    axes.legend(fontsize=7, loc="center right", bbox_to_anchor=(1.0, 0.68))
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    command(__file__, __doc__, compute, table, draw)
