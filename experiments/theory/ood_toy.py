"""The instance of `out_of_distribution.py`: signal per context, shared nuisance, exact scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

N_CONTEXTS, SIGNAL_DIM, NUISANCE_DIM, RADIUS = 8, 4, 24, 3.0
DIM = SIGNAL_DIM + NUISANCE_DIM
KINDS = {
    "calm": "the whole input shrunk to N(0, 0.3^2)",
    "wrong context": "the signal of another context, calm nuisance N(0, 0.5^2)",
    "wild nuisance": "the right signal, nuisance N(0, 1.5^2)",
}


class Pairs(NamedTuple):
    """Contexts [B] int64 and inputs [B, DIM] float32."""

    contexts: Tensor
    inputs: Tensor


def context_means(generator: torch.Generator) -> Tensor:
    """Return the mean signal of each context [C, SIGNAL_DIM], at one distance from 0."""
    return RADIUS * F.normalize(torch.randn(N_CONTEXTS, SIGNAL_DIM, generator=generator), dim=1)


def in_distribution(means: Tensor, n_pairs: int, generator: torch.Generator) -> Pairs:
    """Return pairs of a uniform context and an input that belongs to it."""
    contexts = torch.randint(N_CONTEXTS, (n_pairs,), generator=generator)
    inputs = torch.randn(n_pairs, DIM, generator=generator)
    inputs[:, :SIGNAL_DIM] += means[contexts]
    return Pairs(contexts, inputs)


def out_of_distribution(
    kind: str, means: Tensor, n_pairs: int, generator: torch.Generator
) -> Pairs:
    """Return pairs that never occur in training; `KINDS` says of which kind."""
    contexts, inputs = in_distribution(means, n_pairs, generator)
    if kind == "calm":
        return Pairs(contexts, 0.3 * torch.randn(inputs.shape, generator=generator))
    inputs[:, SIGNAL_DIM:] *= 0.5 if kind == "wrong context" else 1.5
    if kind == "wrong context":
        others = torch.randint(1, N_CONTEXTS, (n_pairs,), generator=generator)
        contexts = (contexts + others) % N_CONTEXTS
    return Pairs(contexts, inputs)


def log_likelihood(means: Tensor, pairs: Pairs) -> Tensor:
    """Return log p(x|c) [B]."""
    return _log_densities(means, pairs.inputs)[torch.arange(len(pairs.contexts)), pairs.contexts]


def exact_ratio(means: Tensor, pairs: Pairs) -> Tensor:
    """Return log p(x|c) / p(x) [B]."""
    log_marginal = _log_densities(means, pairs.inputs).logsumexp(dim=1) - math.log(N_CONTEXTS)
    return log_likelihood(means, pairs) - log_marginal


def _log_densities(means: Tensor, inputs: Tensor) -> Tensor:
    """Return log p(x|c) of every context [B, C]."""
    signal, nuisance = inputs[:, :SIGNAL_DIM], inputs[:, SIGNAL_DIM:]
    squares = torch.cdist(signal, means).square() + nuisance.square().sum(dim=1, keepdim=True)
    return -squares / 2 - inputs.shape[1] / 2 * math.log(2 * math.pi)
