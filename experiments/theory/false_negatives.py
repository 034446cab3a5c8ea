"""What negatives of the anchor's own class cost, and what correcting or masking them gives back.

Points of known classes lie around their class's mean; a pair is two noisy views of one point, so
that instances can be told apart and every batch holds negatives of the anchor's class. An encoder
onto the sphere learns with `info_nce`, with `debiased_info_nce` (which knows the share of a class)
and with a mask over pairs of one class (which knows the classes). Judged on new points: accuracy of
the nearest class mean and of the nearest neighbour, and cosines within and between classes.

    python experiments/theory/false_negatives.py --output experiments/results/theory
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from rl_infonce.nce import debiased_info_nce, info_nce

LOSSES = ("info_nce", "debiased_info_nce", "masked")
TEMPERATURES = (0.5, 0.1)
N_CLASSES, WIDTH, EMBEDDING, BATCH = 10, 32, 8, 128
CLASS_SPREAD, INSTANCE_SPREAD, VIEW_NOISE = 0.5, 1.0, 0.4


class Points(NamedTuple):
    """Points [n, D] and their classes [n]."""

    features: Tensor
    classes: Tensor


def sample_points(means: Tensor, n: int, generator: torch.Generator) -> Points:
    """Return points around class means [C, D], classes equally likely."""
    classes = torch.randint(len(means), (n,), generator=generator)
    spread = INSTANCE_SPREAD * torch.randn(n, means.shape[1], generator=generator)
    return Points(means[classes] + spread, classes)


def view(points: Points, generator: torch.Generator) -> Tensor:
    """Return what is seen of the points: their features and noise."""
    noise = torch.randn(points.features.shape, generator=generator)
    return points.features + VIEW_NOISE * noise


def make_encoder(generator: torch.Generator) -> nn.Sequential:
    """Return D -> 64 -> E with weights from the generator."""
    encoder = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, EMBEDDING))
    with torch.no_grad():
        for parameter in encoder.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.ndim == 2 else 0.0
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return encoder


def losses(name: str, cosines: Tensor, classes: Tensor, temperature: float) -> Tensor:
    """Return [B] losses of cosines [B, B] whose diagonal holds the positives."""
    scores = cosines / temperature
    if name == "info_nce":
        return info_nce(scores, validate_args=False)
    if name == "masked":
        return info_nce(scores, mask=other_class_or_self(classes), validate_args=False)
    return debiased_info_nce(
        scores, class_prior=1 / N_CLASSES, min_score=-1 / temperature, validate_args=False
    )


def other_class_or_self(classes: Tensor) -> Tensor:
    """Return [B, B], False for negatives of the anchor's class."""
    own = torch.eye(len(classes), dtype=torch.bool)
    return (classes[:, None] != classes[None]) | own


def at_floor(cosines: Tensor, temperature: float) -> float:
    """Return the share of rows whose debiased mean of negatives is clamped at exp(-1 / T)."""
    prior = 1 / N_CLASSES
    exponentials = (cosines.detach().double() / temperature).exp()
    positives = exponentials.diagonal()
    mean = (exponentials.sum(dim=1) - positives) / (len(cosines) - 1)
    left = (mean - prior * positives) / (1 - prior)
    floor = torch.tensor(-1 / temperature, dtype=torch.float64).exp()
    return float((left <= floor).double().mean())


def train(
    name: str, temperature: float, means: Tensor, n_steps: int, seed: int
) -> tuple[nn.Sequential, float]:
    """Return the encoder, and the share of rows at the debiased floor over its last tenth."""
    generator = torch.Generator().manual_seed(seed)
    encoder = make_encoder(generator)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    floored = []
    for step in range(n_steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / n_steps)
        points = sample_points(means, BATCH, generator)
        anchors, positives = (normalize(encoder(view(points, generator)), dim=-1) for _ in range(2))
        cosines = anchors @ positives.T
        optimizer.zero_grad()
        torch.autograd.backward(losses(name, cosines, points.classes, temperature).mean())
        optimizer.step()
        if step >= n_steps * 9 // 10:
            floored.append(at_floor(cosines, temperature))
    return encoder, sum(floored) / len(floored)


@torch.no_grad()
def judge(encoder: nn.Sequential, means: Tensor, seed: int) -> dict[str, float]:
    """Return accuracies and mean cosines on 2,000 new points, with 1,000 others as labelled."""
    generator = torch.Generator().manual_seed(seed)
    known, new = sample_points(means, 1000, generator), sample_points(means, 2000, generator)
    known_codes, anchors, positives = (
        normalize(encoder(view(points, generator)), dim=-1) for points in (known, new, new)
    )
    centres = torch.stack([known_codes[known.classes == c].mean(dim=0) for c in range(N_CLASSES)])
    by_mean = (anchors @ normalize(centres, dim=-1).T).argmax(dim=1)
    by_neighbour = known.classes[(anchors @ known_codes.T).argmax(dim=1)]
    cosines = anchors @ positives.T
    same = new.classes[:, None] == new.classes[None]
    own = torch.eye(len(same), dtype=torch.bool)
    return {
        "nearest_mean": float((by_mean == new.classes).float().mean()),
        "nearest_neighbour": float((by_neighbour == new.classes).float().mean()),
        "positive": float(cosines.diagonal().mean()),
        "same_class": float(cosines[same & ~own].mean()),
        "other_class": float(cosines[~same].mean()),
    }


def run(seeds: list[int], n_steps: int) -> dict[str, Any]:
    """Train every loss at every temperature with every seed; a seed also draws its classes."""
    runs = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(1000 + seed)
        means = CLASS_SPREAD * torch.randn(N_CLASSES, WIDTH, generator=generator)
        for temperature in TEMPERATURES:
            for name in LOSSES:
                encoder, floor = train(name, temperature, means, n_steps, seed)
                found = judge(encoder, means, 2000 + seed)
                runs.append({"loss": name, "temperature": temperature, "at_floor": floor, **found})
    return {"seeds": seeds, "steps": n_steps, "runs": runs}


COLUMNS = (
    "nearest_mean", "nearest_neighbour", "positive", "same_class", "other_class", "at_floor",
)  # fmt: skip


def of_setting(summary: dict[str, Any], loss: str, temperature: float, name: str) -> list[float]:
    """Return one figure of one setting, a value per seed."""
    setting = (loss, temperature)
    return [run[name] for run in summary["runs"] if (run["loss"], run["temperature"]) == setting]


def table(summary: dict[str, Any]) -> str:
    """Return means in Markdown, lowest and highest seed in brackets."""
    names = [name.replace("_", " ") for name in COLUMNS]
    lines = [f"| T | loss | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for temperature in TEMPERATURES:
        for loss in LOSSES:
            cells = []
            for name in COLUMNS:
                values = of_setting(summary, loss, temperature, name)
                mean = sum(values) / len(values)
                cells.append(f"{mean:.3f} ({min(values):.3f} to {max(values):.3f})")
                if name == "at_floor" and loss != "debiased_info_nce":
                    cells[-1] = "-"
            lines.append(f"| {temperature} | {loss} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw accuracy and cosines of every setting, a point per seed."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    settings = [(loss, t) for t in TEMPERATURES for loss in LOSSES]
    panels = (COLUMNS[:2], COLUMNS[2:5])
    for axis, names in zip(axes, panels, strict=True):
        for index, name in enumerate(names):
            for position, (loss, temperature) in enumerate(settings):
                values = of_setting(summary, loss, temperature, name)
                label = name.replace("_", " ") if position == 0 else None
                at = [position + 0.15 * (index - 0.5)] * len(values)
                axis.plot(at, values, f"C{index}o", ms=4, alpha=0.7, label=label)
        labels = [f"{loss.removesuffix('_info_nce')}\nT = {t}" for loss, t in settings]
        axis.set_xticks(range(len(settings)), labels, fontsize=7)
        axis.legend(fontsize=7)
    axes[0].set(ylabel="accuracy")
    axes[1].set(ylabel="mean cosine")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Train, print the table, write JSON and figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of JSON and figure")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    summary = run(args.seeds, args.steps)
    (args.output / "false_negatives.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(summary, args.output / "false_negatives.png")
    print(table(summary))


if __name__ == "__main__":
    main()
