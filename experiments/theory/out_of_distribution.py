"""Does the density ratio notice what the likelihood does not?

A likelihood can be higher on inputs it has never seen (Nalisnick et al. 2019, "Do Deep Generative
Models Know What They Don't Know?"): most of it is spent on what all inputs share, and calm inputs
are likelier than any typical one. The toy: 8 contexts, 4 dimensions of signal around a mean per
context, 24 dimensions of nuisance N(0, 1) whatever the context. Scored are pairs (context, input):
log p(x|c) in closed form, log p(x|c) / p(x) in closed form, and that ratio as a critic learns it
from `info_nce`, read by `density_ratio_score`. In-distribution pairs should score higher.

    python experiments/theory/out_of_distribution.py --output experiments/results/theory
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from exact import Result, command, markdown, mean_and_error
from ood_toy import (
    DIM,
    KINDS,
    N_CONTEXTS,
    Pairs,
    context_means,
    exact_ratio,
    in_distribution,
    log_likelihood,
    out_of_distribution,
)
from torch import Tensor

from rl_infonce.nce import SeparableMLPCritic, density_ratio_score, info_nce

N_SCORED, N_REFERENCES, N_SEEDS = 1000, 512, 5
BATCH_SIZE, N_STEPS, RATE = 128, 1500, 1e-3
SCORES = ("likelihood", "exact ratio", "learned ratio")
RANGES = {"likelihood": (-75.0, -24.0), "exact ratio": (-25.0, 3.0), "learned ratio": (-25.0, 3.0)}
N_BINS = 40


def learn(means: Tensor, generator: torch.Generator, n_steps: int = N_STEPS) -> SeparableMLPCritic:
    """Return a critic trained by InfoNCE on in-distribution pairs."""
    critic = SeparableMLPCritic(
        N_CONTEXTS, DIM, generator=generator, hidden_dim=64, projection_dim=32
    )
    optimiser = torch.optim.Adam(critic.parameters(), lr=RATE)
    for _ in range(n_steps):
        contexts, inputs = in_distribution(means, BATCH_SIZE, generator)
        optimiser.zero_grad()
        loss = info_nce(critic(_one_hot(contexts), inputs)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return critic


def learned_ratio(critic: SeparableMLPCritic, pairs: Pairs, references: Tensor) -> Tensor:
    """Return the critic's log p(x|c) / p(x) [B], references [M, D] being draws from p(x)."""
    with torch.no_grad():
        anchors = _one_hot(pairs.contexts)
        own = critic(anchors[:, None], pairs.inputs[:, None])[:, 0, 0]
        return density_ratio_score(own, critic(anchors, references))


def _one_hot(contexts: Tensor) -> Tensor:
    return F.one_hot(contexts, N_CONTEXTS).float()


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Return the probability that a draw of `inside` exceeds one of `outside`; ties count half."""
    ordered = outside.sort().values
    below = torch.searchsorted(ordered, inside)
    not_above = torch.searchsorted(ordered, inside, right=True)
    return float((below + not_above).double().mean() / (2 * len(outside)))


def score_all(
    means: Tensor, critic: SeparableMLPCritic, pairs: Pairs, references: Tensor
) -> dict[str, Tensor]:
    """Return every score [B] of `pairs`."""
    values = (
        log_likelihood(means, pairs),
        exact_ratio(means, pairs),
        learned_ratio(critic, pairs, references),
    )
    return dict(zip(SCORES, values, strict=True))


def run(seed: int, n_steps: int = N_STEPS) -> Result:
    """Return the AUROC of every score on every kind, and histograms."""
    generator = torch.Generator().manual_seed(seed)
    means = context_means(generator)
    critic = learn(means, generator, n_steps)
    references = in_distribution(means, N_REFERENCES, generator).inputs
    inside = score_all(means, critic, in_distribution(means, N_SCORED, generator), references)
    found: Result = {"seed": seed, "auroc": {}, "counts": {"in distribution": _histogram(inside)}}
    pearson = torch.corrcoef(torch.stack([inside["exact ratio"], inside["learned ratio"]]))[0, 1]
    found["correlation"] = float(pearson)
    for kind in KINDS:
        pairs = out_of_distribution(kind, means, N_SCORED, generator)
        outside = score_all(means, critic, pairs, references)
        found["auroc"][kind] = {name: auroc(inside[name], outside[name]) for name in SCORES}
        found["counts"][kind] = _histogram(outside)
    return found


def _histogram(scores: dict[str, Tensor]) -> dict[str, list[int]]:
    """Return counts in bins over `RANGES`; what lies outside counts at the edge."""
    return {
        name: torch.histc(values.clamp(*RANGES[name]), N_BINS, *RANGES[name]).int().tolist()
        for name, values in scores.items()
    }


def compute() -> Result:
    """Run every seed."""
    return {"runs": [run(seed) for seed in range(N_SEEDS)]}


def table(result: Result) -> str:
    """Return AUROC, mean and 95 % interval over seeds, in Markdown."""
    rows = []
    for kind, what in KINDS.items():
        columns = [[run["auroc"][kind][name] for run in result["runs"]] for name in SCORES]
        cells = ["{:.3f} +- {:.3f}".format(*mean_and_error(column)) for column in columns]
        rows.append([f"{kind}: {what}", *cells])
    return markdown(["out of distribution", *SCORES], rows)


def draw(result: Result, path: Path) -> None:
    """Draw histograms of the scores of seed 0."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for panel, name in zip(axes, SCORES, strict=True):
        edges = torch.linspace(*RANGES[name], N_BINS + 1).tolist()
        for index, (kind, counts) in enumerate(result["runs"][0]["counts"].items()):
            fill = (
                {"color": "0.8", "fill": True}
                if kind == "in distribution"
                else {"color": f"C{index}"}
            )
            panel.stairs(counts[name], edges, label=kind, **fill)
        panel.set(title=name, xlabel="nats", ylabel="pairs")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    command(__file__, __doc__, compute, table, draw)
