"""Do word models trained with NCE reach the perplexity of the exact softmax?

A log-bilinear model (two words before -> next word) learns an artificial language whose entropy is
known, and a small book, with the exact loss, with `local_nce` and with `ranking_nce`. Every setting
sees the same batches and is judged by the exact softmax. What an update costs is measured by
`language_model_speed.py`.

    python experiments/theory/language_model.py --output experiments/results/theory
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from word_corpora import BATCH, Corpus, book_corpus, synthetic_corpus

from rl_infonce.nce import exact_nll, local_nce, ranking_nce, uniform_noise, unigram_noise

WIDTH, LEARNING_RATE = 32, 0.01


class Setting(NamedTuple):
    """How a model is trained; with `shared`, one draw of noise serves the whole batch."""

    loss: str
    noise: str = "-"
    k: int = 0
    log_z: str = "-"
    shared: bool = False


SETTINGS = (
    Setting("exact"),
    *(Setting("local", q, k, z) for q in ("unigram", "uniform") for k in (1, 5, 25)
      for z in ("0", "learned")),
    *(Setting("local", "unigram", k, "0", shared=True) for k in (25, 400)),
    Setting("ranking", "unigram", 25),
    Setting("ranking", "uniform", 25),
)  # fmt: skip


class WordModel(nn.Module):
    """Scores s(c, w) = (first_c1 + second_c2) . output_w + bias_w; biases start at -log V."""

    def __init__(self, n_words: int, generator: torch.Generator) -> None:
        super().__init__()
        tables = 0.1 * torch.randn(3, n_words, WIDTH, generator=generator)
        self.first, self.second, self.output = map(nn.Parameter, tables)
        self.bias = nn.Parameter(torch.full((n_words,), -math.log(n_words)))
        self.log_z = nn.Parameter(torch.zeros(()))

    def context(self, before: Tensor) -> Tensor:
        """Return [B, D] of [B, 2] words."""
        first = functional.embedding(before[:, 0], self.first)
        return first + functional.embedding(before[:, 1], self.second)

    def all_scores(self, context: Tensor) -> Tensor:
        """Return [B, V]."""
        return context @ self.output.T + self.bias

    def scores(self, context: Tensor, words: Tensor) -> Tensor:
        """Return [B, K] of words [B, K], or of [K] shared by all rows."""
        rows = functional.embedding(words, self.output)
        dots = context @ rows.T if words.ndim == 1 else (rows @ context[:, :, None]).squeeze(2)
        return dots + self.bias[words]


def loss_of(
    model: WordModel, setting: Setting, batch: Tensor, noise: Any, generator: Any
) -> Tensor:
    """Return [B] losses of a batch [B, 3] of trigrams."""
    context, targets = model.context(batch[:, :2]), batch[:, 2]
    if setting.loss == "exact":
        return exact_nll(model.all_scores(context), targets, validate_args=False)
    shape = (setting.k,) if setting.shared else (len(batch), setting.k)
    drawn = noise.sample(shape, generator)
    positive = model.scores(context, targets[:, None])  # [B, 1]
    args = (positive, model.scores(context, drawn))
    log_q = (noise.log_prob(targets[:, None]), noise.log_prob(drawn))
    if setting.loss == "ranking":
        return ranking_nce(*args, *log_q, validate_args=False)
    log_z = model.log_z if setting.log_z == "learned" else 0.0
    return local_nce(*args, *log_q, log_z=log_z, validate_args=False)


def train(setting: Setting, corpus: Corpus, seed: int) -> WordModel:
    """Return a model after one pass over `corpus.train`; Adam, learning rate falling to 0."""
    generator = torch.Generator().manual_seed(seed)
    model = WordModel(corpus.n_words, generator)
    counts = torch.bincount(corpus.train[:, 2], minlength=corpus.n_words) + 1
    uniform = setting.noise == "uniform"
    noise = uniform_noise(corpus.n_words) if uniform else unigram_noise(counts)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    batches = corpus.train.reshape(-1, BATCH, 3)
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - step / len(batches))
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model, setting, batch, noise, generator).mean())
        optimizer.step()
    return model


@torch.no_grad()
def judge(model: WordModel, corpus: Corpus) -> dict[str, float]:
    """Return the exact perplexity, and mean and spread of log Z(c) - log_z over contexts."""
    scores = model.all_scores(model.context(corpus.test[:, :2]))
    if corpus.truth is None:
        nats = float(exact_nll(scores, corpus.test[:, 2]).mean())
    else:  # the entropy is exact, and so is the divergence in each test context
        gap = corpus.truth - scores.double().log_softmax(dim=-1)
        nats = corpus.entropy + float((corpus.truth.exp() * gap).sum(dim=-1).mean())
    log_z = scores.logsumexp(dim=-1) - model.log_z
    return {"perplexity": math.exp(nats), "log_z": float(log_z.mean()), "sd": float(log_z.std())}


@functools.cache
def corpora(seed: int, n_steps: int, n_book_steps: int) -> dict[str, Corpus]:
    """Return the language and the book as a seed sees them."""
    return {"language": synthetic_corpus(n_steps, seed), "book": book_corpus(n_book_steps, seed)}


def judged(setting: Setting, seed: int, n_steps: int, n_book_steps: int) -> dict[str, Any]:
    """Train a setting on both corpora and judge it."""
    torch.set_num_threads(1)
    found = corpora(seed, n_steps, n_book_steps)
    judgements = {name: judge(train(setting, c, seed), c) for name, c in found.items()}
    return {**setting._asdict(), "seed": seed, **judgements}


def run(seeds: list[int], n_steps: int, n_book_steps: int, n_jobs: int = 1) -> dict[str, Any]:
    """Train every setting on both corpora with every seed, in one process or several."""
    tasks = [(setting, seed, n_steps, n_book_steps) for seed in seeds for setting in SETTINGS]
    if n_jobs == 1:
        results = [judged(*task) for task in tasks]
    else:
        with ProcessPoolExecutor(n_jobs, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(judged, *zip(*tasks, strict=True)))
    language = corpora(seeds[-1], n_steps, n_book_steps)["language"]
    return {
        "seeds": seeds,
        "steps": n_steps,
        "book_steps": n_book_steps,
        "true_perplexity": math.exp(language.entropy),
        "runs": results,
    }


def by_setting(summary: dict[str, Any]) -> dict[Setting, dict[str, list[float]]]:
    """Return, per setting, what every seed found."""
    found: dict[Setting, dict[str, list[float]]] = {}
    for entry in summary["runs"]:
        lists = found.setdefault(Setting(*(entry[name] for name in Setting._fields)), {})
        for corpus in ("language", "book"):
            for name, value in entry[corpus].items():
                lists.setdefault(f"{corpus} {name}", []).append(value)
    return found


def table(summary: dict[str, Any]) -> str:
    """Return perplexities and log Z in Markdown; lowest and highest seed in brackets."""
    lines = [
        f"| loss | noise | k | log_z | language (truth {summary['true_perplexity']:.1f}) "
        "| log Z(c) - log_z | book |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, found in by_setting(summary).items():
        k = f"{setting.k}{' per batch' * setting.shared}" if setting.k else "-"
        log_z = [sum(found[f"language {name}"]) / len(summary["seeds"]) for name in ("log_z", "sd")]
        lines.append(
            f"| {setting.loss} | {setting.noise} | {k} | {setting.log_z} "
            f"| {_spread(found['language perplexity'])} | {log_z[0]:+.2f} +- {log_z[1]:.2f} "
            f"| {_spread(found['book perplexity'])} |"
        )
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw perplexity against k, with the exact softmax and the truth as lines."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    found = by_setting(summary)
    curves: dict[str, list[Setting]] = {}
    for setting in found:
        log_z = "" if setting.loss == "ranking" else f", log_z {setting.log_z}"
        shared = ", shared" * setting.shared
        curves.setdefault(f"{setting.loss}, {setting.noise}{log_z}{shared}", []).append(setting)
    exact = curves.pop("exact, -, log_z -")[0]
    for axis, corpus in zip(axes, ("language", "book"), strict=True):
        for label, settings in curves.items():
            seeds = [found[setting][f"{corpus} perplexity"] for setting in settings]
            ks = [setting.k for setting in settings]
            (line,) = axis.plot(ks, [sum(v) / len(v) for v in seeds], lw=1, label=label)
            axis.plot(ks, seeds, "o", ms=3, color=line.get_color())
        values = found[exact][f"{corpus} perplexity"]
        axis.axhline(sum(values) / len(values), color="k", ls="--", lw=1, label="exact softmax")
        axis.set(xscale="log", xlabel="noise words k", title=f"{corpus}: perplexity")
    axes[0].axhline(summary["true_perplexity"], color="k", ls=":", lw=1, label="truth")
    axes[0].legend(fontsize=6)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Train, print the table, write JSON and figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of JSON and figure")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--book-steps", type=int, default=400)
    parser.add_argument(
        "--jobs", type=int, default=2, help="number of processes, of one thread each"
    )
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    summary = run(args.seeds, args.steps, args.book_steps, args.jobs)
    (args.output / "language_model.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(summary, args.output / "language_model.png")
    print(table(summary))


if __name__ == "__main__":
    main()
