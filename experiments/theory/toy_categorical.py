"""What does each estimator identify, and how fast, where everything is known?

Three contexts, five outcomes, a free table of scores and a skewed noise distribution q. (a) The
exact optimum of every loss: expectations over all samples, float64, L-BFGS. (b) Training on sampled
batches with SGD and Adam, and the divergence of what was learned from the truth. The taxonomy is
that of Ma & Collins 2018 and Jozefowicz et al. 2016; scores are read as the losses' docstrings say.

    python experiments/theory/toy_categorical.py --output experiments/results/theory
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.theory.exact import Result, Rows, command, enumerated, markdown, minimise, zeros
from rl_infonce.nce import (
    CategoricalNoise,
    exact_nll,
    info_nce,
    local_nce,
    negative_sampling,
    partition_nll,
    ranking_nce,
)

N_CONTEXTS, N_OUTCOMES = 3, 5
P_CONTEXT = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.4, 0.25, 0.15, 0.12, 0.08], dtype=torch.float64)
TRUTH = torch.tensor(np.random.default_rng(1).dirichlet(np.ones(N_OUTCOMES), size=N_CONTEXTS))
JOINT = P_CONTEXT[:, None] * TRUTH
LOG_Q = Q.log()
N_SEEDS, N_ROWS, N_STEPS, TRAIN_NOISE = 10, 64, 3000, 10
RATES = {"SGD": 0.5, "Adam": 0.02}


def exact(s: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    """Return `exact_nll` of rows; scores s are [C, V]."""
    return exact_nll(s[rows.contexts], rows.positives)


def partition(s: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    """Return `partition_nll` of rows."""
    return partition_nll(*_scores(s, rows), LOG_Q[rows.noise])


def local(s: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    """Return `local_nce` of rows."""
    return local_nce(*_scores(s, rows), *_log_q(rows), log_z=log_z)


def ranking(s: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    """Return `ranking_nce` of rows."""
    return ranking_nce(*_scores(s, rows), *_log_q(rows))


def info_nce_corrected(s: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    """Return `info_nce` of scores less log q."""
    return info_nce_plain(s - LOG_Q, log_z, rows)


def info_nce_plain(s: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    """Return `info_nce` of scores as they are."""
    positives, noise = _scores(s, rows)
    return info_nce(torch.cat([positives[:, None], noise], dim=1)[:, None])[:, 0]


def negative(s: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    """Return `negative_sampling` of rows."""
    return negative_sampling(*_scores(s, rows))


def _scores(s: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    return s[rows.contexts, rows.positives], s[rows.contexts[:, None], rows.noise]


def _log_q(rows: Rows) -> tuple[Tensor, Tensor]:
    return LOG_Q[rows.positives], LOG_Q[rows.noise]


class Estimator(NamedTuple):
    """A loss, and how its scores are read.

    Attributes:
        loss: Scores, log Z and rows in, losses [R] out.
        n_noise: K of the exact optimum.
        q_power: What is identified is log p - q_power log q.
        learns_log_z: Whether log Z is a parameter.
        shift_k: Whether log K is missing, too.
    """

    loss: Callable[[Tensor, Tensor, Rows], Tensor]
    n_noise: int
    q_power: int = 0
    learns_log_z: bool = False
    shift_k: bool = False

    def identified(self, s: Tensor, log_z: Tensor, n_noise: int) -> Tensor:
        """Return the estimate of log p(x|c), for some losses up to a constant per context."""
        return s - log_z + self.q_power * LOG_Q + self.shift_k * math.log(n_noise)


ESTIMATORS: dict[str, Estimator] = {
    "exact NLL": Estimator(exact, 1),
    "partition NLL, K=10": Estimator(partition, 10),
    "local NCE": Estimator(local, 4),
    "local NCE, learned log Z": Estimator(local, 4, learns_log_z=True),
    "ranking NCE": Estimator(ranking, 2),
    "InfoNCE, log q corrected": Estimator(info_nce_corrected, 2),
    "InfoNCE": Estimator(info_nce_plain, 2, q_power=1),
    "negative sampling": Estimator(negative, 4, q_power=1, shift_k=True),
}
