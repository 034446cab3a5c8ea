"""What `language_model.py` learns from: a language of known entropy, and a book."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

BOOK = Path(__file__).parents[1] / "data" / "alice.txt"
BATCH = 256


class Language(NamedTuple):
    """A trigram language: the next word depends on the classes of the two words before.

    Attributes:
        classes: [V] class of each word.
        log_probs: [C, C, V] log p(next word | class of the word before last, of the last word).
    """

    classes: Tensor
    log_probs: Tensor


class Corpus(NamedTuple):
    """Training data [n, 3] of words, data to judge by [m, 3], and its true log p [m, V] if known.

    `entropy` is that of the next word given all words before, in nats; NaN if it is not known.
    """

    train: Tensor
    test: Tensor
    n_words: int
    truth: Tensor | None
    entropy: float


def make_language(
    n_words: int, n_classes: int, generator: torch.Generator, *, strength: float = 1.0
) -> Language:
    """Return log p(w|a, b) = -log rank(w) + strength * (u_a + v_b) . e_w - log Z(a, b)."""
    classes = torch.randperm(n_words, generator=generator) % n_classes
    size = {"generator": generator, "dtype": torch.float64}
    of_words = torch.randn(n_words, 4, **size)  # type: ignore[call-overload]
    u, v = torch.randn(2, n_classes, 4, **size)  # type: ignore[call-overload]
    zipf = -torch.arange(1, n_words + 1, dtype=torch.float64).log()
    logits = zipf + strength * (u[:, None] + v[None]) @ of_words.T / 2.0  # [C, C, V]
    return Language(classes, logits.log_softmax(dim=-1))


def entropy_rate(language: Language) -> float:
    """Return the entropy of a word given all before it, in nats, from the stationary law."""
    probs = language.log_probs.exp()
    n_classes = len(probs)
    to_class = functional.one_hot(language.classes, n_classes).to(probs.dtype)
    transition = probs @ to_class  # [C, C, C]: (a, b) -> c
    pairs = torch.full((n_classes, n_classes), n_classes**-2.0, dtype=probs.dtype)
    for _ in range(1000):
        pairs = torch.einsum("ab,abc->bc", pairs, transition)
    return float((pairs * -(probs * language.log_probs).sum(dim=-1)).sum())


def speak(language: Language, n_chains: int, length: int, generator: torch.Generator) -> Tensor:
    """Return trigrams [n_chains * length, 3] in random order, after a burn-in of 50 words."""
    cumulative = language.log_probs.exp().cumsum(dim=-1)
    n_words = len(language.classes)
    # one block, filled in place: small tensors kept from each step would fragment the heap
    text = torch.zeros(n_chains, length + 52, dtype=torch.int64)
    for step in range(2):
        text[:, step] = torch.randint(n_words, (n_chains,), generator=generator)
    for step in range(2, length + 52):
        a, b = language.classes[text[:, step - 2]], language.classes[text[:, step - 1]]
        height = torch.rand(n_chains, 1, generator=generator, dtype=cumulative.dtype)
        found = torch.searchsorted(cumulative[a, b], height).squeeze(1)
        text[:, step] = found.clamp_max(n_words - 1)
    text = text[:, 50:]  # [n_chains, length + 2]
    trigrams = text.unfold(1, 3, 1).reshape(-1, 3)
    return trigrams[torch.randperm(len(trigrams), generator=generator)]


def synthetic_corpus(n_steps: int, seed: int, *, n_words: int = 1000) -> Corpus:
    """Return `n_steps` batches from one artificial language, and 4,000 contexts to test."""
    language = make_language(n_words, 20, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    train = speak(language, BATCH, n_steps, generator)
    test = speak(language, 400, 10, generator)
    truth = language.log_probs[language.classes[test[:, 0]], language.classes[test[:, 1]]]
    return Corpus(train, test, n_words, truth, entropy_rate(language))


def book_corpus(n_steps: int, seed: int, path: Path = BOOK) -> Corpus:
    """Return `n_steps` batches of a book and its last tenth; word 0 stands for rare words."""
    words = re.findall(r"[a-z]+(?:'[a-z]+)?", path.read_text(encoding="ascii").lower())
    cut = len(words) * 9 // 10
    counts = Counter(words[:cut])
    known = sorted(word for word, count in counts.items() if count >= 3)
    ids = {word: index for index, word in enumerate(known, start=1)}
    trigrams = torch.tensor([ids.get(word, 0) for word in words]).unfold(0, 3, 1)
    train, test = trigrams[: cut - 2], trigrams[cut:]
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(train), generator=generator)]
    while sum(map(len, orders)) < n_steps * BATCH:
        orders.append(torch.randperm(len(train), generator=generator))
    return Corpus(train[torch.cat(orders)[: n_steps * BATCH]], test, len(ids) + 1, None, math.nan)
