"""From what vocabulary on is an update with `local_nce` cheaper than with the exact softmax?

One update of a log-bilinear word model by SGD: draw noise, score, differentiate, step. NCE gathers
the rows of the words it needs, differentiates those and writes only those, so that no work grows
with the vocabulary; the exact softmax touches all. The arms alternate, so that a busy machine slows
all of them. What NCE loses in perplexity is measured by `language_model.py`.

    python experiments/theory/language_model_speed.py --output experiments/results/theory
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_infonce.device import processor_name
from rl_infonce.nce import CategoricalNoise, exact_nll, local_nce, unigram_noise

VOCABULARIES = (1_000, 3_000, 10_000, 30_000, 100_000)
BATCH, WIDTH, LEARNING_RATE = 256, 64, 0.01


class Arm(NamedTuple):
    """An estimator: k = 0 is the exact softmax; with `shared`, one draw serves the whole batch."""

    name: str
    k: int
    shared: bool = False


ARMS = (
    Arm("exact", 0),
    Arm("k = 25", 25),
    Arm("k = 25 per batch", 25, shared=True),
    Arm("k = 400 per batch", 400, shared=True),
)


class Tables(NamedTuple):
    """Embeddings of the two words before and of the next word [V, D], and biases [V, 1]."""

    first: Tensor
    second: Tensor
    output: Tensor
    bias: Tensor


class Gathered:
    """Rows of tables as leaves of the graph; `step` writes them back, and no others."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def rows(self, table: Tensor, words: Tensor) -> Tensor:
        """Return the rows [..., D] of words [...]."""
        rows = table[words].requires_grad_()
        self.parts.append((table, words, rows))
        return rows

    def step(self) -> None:
        """Descend along the gradients; a word that was gathered twice gets the sum of both."""
        for table, words, rows in self.parts:
            if rows.grad is not None:
                flat = rows.grad.reshape(-1, table.shape[1])
                table.index_add_(0, words.reshape(-1), flat, alpha=-LEARNING_RATE)


def make_tables(n_words: int, generator: torch.Generator) -> Tables:
    """Return small random embeddings and biases of 0."""
    first, second, output = 0.1 * torch.randn(3, n_words, WIDTH, generator=generator)
    return Tables(first, second, output, torch.zeros(n_words, 1))


def exact_update(tables: Tables, batch: Tensor) -> None:
    """Take one step of SGD on the exact loss of trigrams [B, 3]."""
    gathered = Gathered()
    context = gathered.rows(tables.first, batch[:, 0]) + gathered.rows(tables.second, batch[:, 1])
    output, bias = (table.detach().requires_grad_() for table in (tables.output, tables.bias))
    scores = torch.addmm(bias.T, context, output.T)
    loss = exact_nll(scores, batch[:, 2], validate_args=False).mean()
    torch.autograd.backward(loss)
    gathered.step()
    for table, leaf in ((tables.output, output), (tables.bias, bias)):
        if leaf.grad is not None:
            table.add_(leaf.grad, alpha=-LEARNING_RATE)


def nce_update(
    tables: Tables, batch: Tensor, noise: CategoricalNoise, arm: Arm, generator: torch.Generator
) -> None:
    """Take one step of SGD on `local_nce` of trigrams [B, 3]; touches gathered rows only."""
    gathered = Gathered()
    targets = batch[:, 2]
    drawn = noise.sample((arm.k,) if arm.shared else (len(batch), arm.k), generator)
    context = gathered.rows(tables.first, batch[:, 0]) + gathered.rows(tables.second, batch[:, 1])
    of_targets = gathered.rows(tables.output, targets)
    positive = (context * of_targets).sum(dim=1) + gathered.rows(tables.bias, targets)[:, 0]
    of_noise, bias = gathered.rows(tables.output, drawn), gathered.rows(tables.bias, drawn)[..., 0]
    dots = context @ of_noise.T if arm.shared else (of_noise @ context[:, :, None])[..., 0]
    log_q = (noise.log_prob(targets), noise.log_prob(drawn))
    loss = local_nce(positive, dots + bias, *log_q, validate_args=False).mean()
    torch.autograd.backward(loss)
    gathered.step()


def milliseconds(update: Callable[[], None], n_updates: int) -> float:
    """Return the mean duration of an update."""
    start = time.perf_counter()
    for _ in range(n_updates):
        update()
    return 1000 * (time.perf_counter() - start) / n_updates


def measure(n_words: int, rounds: int, n_updates: int) -> dict[str, list[float]]:
    """Return every arm's milliseconds per update, one figure per round; the first is not kept."""
    generator = torch.Generator().manual_seed(0)
    tables = make_tables(n_words, generator)
    noise = unigram_noise(1.0 / torch.arange(1, n_words + 1))
    batch = noise.sample((BATCH, 3), generator)

    def update_of(arm: Arm) -> Callable[[], None]:
        if arm.k == 0:
            return lambda: exact_update(tables, batch)
        return lambda: nce_update(tables, batch, noise, arm, generator)

    found: dict[str, list[float]] = {arm.name: [] for arm in ARMS}
    for index in range(rounds + 1):
        for arm in ARMS if index % 2 == 0 else ARMS[::-1]:
            found[arm.name].append(milliseconds(update_of(arm), n_updates))
    return {name: durations[1:] for name, durations in found.items()}


def table(summary: dict[str, Any]) -> str:
    """Return, in Markdown, median milliseconds (lowest to highest) and how often NCE is faster."""
    names = [arm.name for arm in ARMS]
    lines = [f"| V | {' | '.join(names)} | exact / (k = 25) |", "|---|" + "---|" * (len(names) + 1)]
    for n_words, found in summary["milliseconds"].items():
        cells = [
            f"{statistics.median(ms):.2f} ({min(ms):.2f} to {max(ms):.2f})"
            for ms in (found[name] for name in names)
        ]
        pairs = zip(found["exact"], found["k = 25"], strict=True)
        ratio = statistics.median(exact / nce for exact, nce in pairs)
        lines.append(f"| {n_words} | {' | '.join(cells)} | {ratio:.2f} |")
    return "\n".join(lines)


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw milliseconds per update against the vocabulary."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    words = [int(n_words) for n_words in summary["milliseconds"]]
    for arm in ARMS:
        rounds = [found[arm.name] for found in summary["milliseconds"].values()]
        label = "exact softmax" if arm.k == 0 else f"local_nce, {arm.name}"
        axis.plot(words, [statistics.median(r) for r in rounds], marker="o", ms=3, label=label)
    axis.set(xscale="log", yscale="log", xlabel="vocabulary", ylabel="milliseconds per update")
    axis.legend(fontsize=7)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def machine() -> dict[str, Any]:
    """Return what the durations depend on."""
    return {
        "cpu": processor_name(),
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure, print the table, write JSON and figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of JSON and figure")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=10, help="number of updates timed at once")
    parser.add_argument("--vocabularies", type=int, nargs="+", default=VOCABULARIES)
    parser.add_argument("--torch-threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.torch_threads)
    args.output.mkdir(parents=True, exist_ok=True)
    found = {str(n): measure(n, args.rounds, args.updates) for n in args.vocabularies}
    summary = {"machine": machine(), "batch": BATCH, "width": WIDTH, "milliseconds": found}
    path = args.output / "language_model_speed.json"
    path.write_text(json.dumps(summary, indent=1) + "\n")
    draw(summary, path.with_suffix(".png"))
    print(table(summary))


if __name__ == "__main__":
    main()
