"""How batch size and temperature change the gradient of InfoNCE, and what is learned with it.

Pairs on the sphere, p(y|x) proportional to exp(kappa (x R) . y) with an unknown rotation R: the
critic cos(x W, y) / T is log p(y|x) / p(y) at W = R and T = 1 / kappa. First the signal-to-noise
ratio of the gradient |E g| / sqrt(E |g - E g|^2), early (W a random rotation) and late (W close to
R); then, for a fixed number of pairs spent, the error 1 - E cos(x W, x R) after SGD, at the rate
that other seeds found best for that setting, and the bound on mutual information it gives.

    python experiments/theory/batch_and_temperature.py --output experiments/results/theory
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from exact import mean_and_error
from torch import Tensor
from torch.nn.functional import normalize

from rl_infonce.nce import info_nce, info_nce_bound

WIDTH, KAPPA = 8, 10.0
BATCHES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
BATCH, TEMPERATURE = 32, 1 / KAPPA  # of the sweep over the other
RATES = tuple(2.0**i for i in range(-6, 8))  # in units of the temperature


def rotations(n: int, generator: torch.Generator) -> Tensor:
    """Return random orthogonal matrices [n, D, D]."""
    return Tensor(torch.linalg.qr(torch.randn(n, WIDTH, WIDTH, generator=generator))[0])


def cosine_law() -> tuple[Tensor, Tensor]:
    """Return a grid of cosines t and their probabilities, (1 - t^2)^((D - 3) / 2) exp(kappa t)."""
    grid = torch.linspace(-1, 1, 4001, dtype=torch.float64)
    density = (1 - grid**2) ** ((WIDTH - 3) / 2) * torch.exp(KAPPA * (grid - 1))
    return grid, density / density.sum()


def true_information() -> float:
    """Return the mutual information of x and y in nats: kappa E t - log E exp(kappa t)."""
    grid, probs = cosine_law()
    log_mean = -(probs * torch.exp(-KAPPA * grid)).sum().log()  # under the uniform law of y
    return float(KAPPA * (probs * grid).sum() - log_mean)


def sample_pairs(truth: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return x and y [..., n, D] on the sphere for rotations R [..., D, D]."""
    grid, probs = cosine_law()
    shape = (*truth.shape[:-2], n)
    height = torch.rand(shape, generator=generator, dtype=torch.float64)
    cosine = grid[torch.searchsorted(probs.cumsum(0), height).clamp_max(4000)].float()[..., None]
    x = normalize(torch.randn(*shape, WIDTH, generator=generator), dim=-1)
    centre = x @ truth
    other = torch.randn(*shape, WIDTH, generator=generator)
    other = normalize(other - (other * centre).sum(-1, keepdim=True) * centre, dim=-1)
    return x, cosine * centre + (1 - cosine**2).sqrt() * other


def gradients(maps: Tensor, x: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Return the gradients [..., D, D] of the mean InfoNCE loss of each batch [..., N, D]."""
    maps = maps.detach().requires_grad_()
    loss = info_nce(critic(maps, x, y, temperature), validate_args=False).mean(dim=-1).sum()
    return torch.autograd.grad(loss, maps)[0]


def critic(maps: Tensor, x: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Return the scores cos(x W, y) / T [..., N, N]."""
    return normalize(x @ maps, dim=-1) @ y.mT / temperature


def bound(maps: Tensor, truth: Tensor, temperature: float) -> Tensor:
    """Return log N - InfoNCE [...] of 2,048 pairs, N = 512 at a time."""
    blocks = truth[..., None, :, :].expand(*truth.shape[:-2], 4, -1, -1)
    x, y = sample_pairs(blocks, 512, torch.Generator().manual_seed(0))
    return info_nce_bound(critic(maps[..., None, :, :], x, y, temperature)).mean(dim=-1)


def error(maps: Tensor, truth: Tensor) -> Tensor:
    """Return 1 - E cos(x W, x R) [...] over 2,000 points x on the sphere."""
    x = normalize(torch.randn(2000, WIDTH, generator=torch.Generator().manual_seed(0)), dim=-1)
    return 1 - (normalize(x @ maps, dim=-1) * (x @ truth)).sum(-1).mean(-1)


def signal_to_noise(
    late: bool, batch: int, temperature: float, seed: int, n_pairs: int
) -> dict[str, float]:
    """Return the noise and the ratio for one W, from n_pairs / batch independent batches."""
    generator = torch.Generator().manual_seed(seed)
    truth, elsewhere = rotations(2, generator)
    n_batches = n_pairs // batch
    state = truth + 0.1 * elsewhere if late else elsewhere
    x, y = sample_pairs(truth.expand(n_batches, -1, -1), batch, generator)
    found = gradients(state.expand(n_batches, -1, -1), x, y, temperature).flatten(1)
    variance = float(found.var(dim=0).sum())
    # the mean of n has variance of its own, which must not count as signal
    signal = max(float(found.mean(dim=0).square().sum()) - variance / n_batches, 0.0)
    ratio = math.sqrt(signal / variance)
    return {"noise": math.sqrt(variance), "ratio": ratio, "per_pair": ratio / math.sqrt(batch)}


def train(
    batch: int, temperature: float, rates: list[float], seed: int, n_runs: int, n_pairs: int
) -> tuple[Tensor, Tensor]:
    """Return W [n_runs, rates, D, D] after SGD, whose rate falls to 0, and R [n_runs, 1, D, D]."""
    generator = torch.Generator().manual_seed(seed)
    truth = rotations(n_runs, generator)
    maps = rotations(n_runs, generator)[:, None].repeat(1, len(rates), 1, 1)
    steps = temperature * torch.tensor(rates)[:, None, None]
    n_updates = n_pairs // batch
    for update in range(n_updates):
        x, y = (side[:, None] for side in sample_pairs(truth, batch, generator))
        maps = maps - (1 - update / n_updates) * steps * gradients(maps, x, y, temperature)
        maps = maps / maps.norm(dim=(-2, -1), keepdim=True) * math.sqrt(WIDTH)
    return maps, truth[:, None]


def final_error(batch: int, temperature: float, n_runs: int, n_pairs: int) -> dict[str, Any]:
    """Return what `n_runs` seeds reach at the rate best for others, and at the rate T."""
    tuned = error(*train(batch, temperature, list(RATES), 1, n_runs, n_pairs))  # [n_runs, rates]
    rate = RATES[int(tuned.mean(dim=0).argmin())]
    maps, truth = train(batch, temperature, [rate], 2, n_runs, n_pairs)
    return {
        "rate": rate,
        "errors": error(maps, truth)[:, 0].tolist(),
        "bounds": bound(maps, truth, temperature)[:, 0].tolist(),
        "errors_at_rate_t": tuned[:, RATES.index(1.0)].tolist(),
    }


def run(n_runs: int, n_pairs: int, batches: tuple[int, ...]) -> dict[str, Any]:
    """Measure every batch size at T = 1 / kappa, and every temperature at one batch size."""
    sweeps = [("batch", n, TEMPERATURE) for n in batches]
    rows = []
    for sweep, batch, temperature in sweeps + [("temperature", BATCH, t) for t in TEMPERATURES]:
        row: dict[str, Any] = {"sweep": sweep, "batch": batch, "temperature": temperature}
        for state in ("early", "late"):
            args = (state == "late", batch, temperature)
            found = [signal_to_noise(*args, seed, 4 * n_pairs) for seed in range(n_runs)]
            row[state] = {name: [one[name] for one in found] for name in found[0]}
        rows.append(row | final_error(batch, temperature, n_runs, n_pairs))
    return {"runs": n_runs, "pairs": n_pairs, "information": true_information(), "rows": rows}


def with_error(values: list[float], digits: int = 3) -> str:
    """Return the mean and the half-width of its 95 % t interval."""
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f} +- {error:.{digits}f}"


def table(summary: dict[str, Any], sweep: str) -> str:
    """Return one sweep, "batch" or "temperature", in Markdown with 95 % intervals."""
    truth = summary["information"]
    lines = [
        f"| {sweep} | noise, early | signal / noise, early | ... per pair | late, per pair "
        f"| error at rate T | error at best rate | best rate / T | bound (truth {truth:.2f}) |",
        "|---|" + "---|" * 8,
    ]
    for row in (row for row in summary["rows"] if row["sweep"] == sweep):
        lines.append(
            f"| {row[sweep]} | {with_error(row['early']['noise'], 2)} "
            f"| {with_error(row['early']['ratio'], 2)} | {with_error(row['early']['per_pair'])} "
            f"| {with_error(row['late']['per_pair'])} | {with_error(row['errors_at_rate_t'], 4)} "
            f"| {with_error(row['errors'], 4)} | {row['rate']:g} | {with_error(row['bounds'], 2)} |"
        )
    return "\n".join(lines)


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw signal-to-noise and final error against batch size and temperature."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained", sharex="col")
    styles = {"ratio": ("-", "of a batch"), "per_pair": ("--", "per pair")}
    for (upper, lower), sweep in zip(axes.T, ("batch", "temperature"), strict=True):
        rows = [row for row in summary["rows"] if row["sweep"] == sweep]
        at = [row[sweep] for row in rows]
        for state, colour in (("early", "C0"), ("late", "C1")):
            for name, (style, label) in styles.items():
                means = [sum(row[state][name]) / summary["runs"] for row in rows]
                upper.plot(at, means, colour + style, marker="o", ms=3, label=f"{label}, {state}")
        for name, label in (("errors", "best rate"), ("errors_at_rate_t", "rate T")):
            means = [sum(row[name]) / summary["runs"] for row in rows]
            lower.plot(at, means, marker="o", ms=3, label=label)
        for axis in (upper, lower):
            axis.set(xscale="log", yscale="log", xlabel=sweep)
            axis.axvline({"batch": BATCH, "temperature": TEMPERATURE}[sweep], color="k", lw=0.5)
            axis.legend(fontsize=7, framealpha=0.3)
    axes[0, 0].set(ylabel="gradient signal / noise")
    axes[1, 0].set(ylabel=f"error after {summary['pairs']} pairs")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Measure, print the tables, write JSON and figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of JSON and figure")
    parser.add_argument("--runs", type=int, default=10, help="number of seeds")
    parser.add_argument(
        "--pairs", type=int, default=8192, help="number of pairs that each run sees"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    summary = run(args.runs, args.pairs, BATCHES)
    (args.output / "batch_and_temperature.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(summary, args.output / "batch_and_temperature.png")
    print(table(summary, "batch"), table(summary, "temperature"), sep="\n\n")


if __name__ == "__main__":
    main()
