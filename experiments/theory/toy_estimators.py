"""The instance of `toy_categorical.py`, and every loss of the noise-contrastive family on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from exact import Rows
from torch import Tensor

from rl_infonce.nce import (
    exact_nll,
    info_nce,
    local_nce,
    negative_sampling,
    partition_nll,
    ranking_nce,
)

P_CONTEXT = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.4, 0.25, 0.15, 0.12, 0.08], dtype=torch.float64)
TRUTH = torch.tensor(np.random.default_rng(1).dirichlet(np.ones(5), size=3))  # [C, V]
JOINT = P_CONTEXT[:, None] * TRUTH
LOG_Q = Q.log()


class Estimator(NamedTuple):
    """A loss, and how its scores are read.

    Attributes:
        loss: Scores [C, V], log Z (0-dim or one per row) and rows in, losses [R] out.
        n_noise: Each K whose exact optimum is looked for.
        q_power: What is identified is log p - q_power log q.
        shifted: Whether log K is missing, too.
        learns_log_z: Whether log Z is a parameter; else it is 0.
    """

    loss: Callable[[Tensor, Tensor, Rows], Tensor]
    n_noise: tuple[int, ...]
    q_power: int = 0
    shifted: bool = False
    learns_log_z: bool = False

    def read(self, scores: Tensor, log_z: Tensor, n_noise: int) -> Tensor:
        """Return the estimate of log p(x|c), for most losses up to a constant per context."""
        shift = math.log(n_noise) if self.shifted else 0.0
        return scores - log_z + self.q_power * LOG_Q + shift


def _exact(scores: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    return exact_nll(scores[rows.contexts], rows.positives)


def _partition(scores: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    return partition_nll(*_sampled(scores, rows), LOG_Q[rows.noise])


def _local(scores: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    return local_nce(*_sampled(scores, rows), LOG_Q[rows.positives], LOG_Q[rows.noise], log_z=log_z)


def _ranking(scores: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    return ranking_nce(*_sampled(scores, rows), LOG_Q[rows.positives], LOG_Q[rows.noise])


def _info_nce(scores: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    positives, noise = _sampled(scores, rows)
    return info_nce(torch.cat([positives[:, None], noise], dim=1)[:, None])[:, 0]


def _corrected_info_nce(scores: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    return _info_nce(scores - LOG_Q, log_z, rows)


def _negative_sampling(scores: Tensor, log_z: Tensor, rows: Rows) -> Tensor:
    return negative_sampling(*_sampled(scores, rows))


def _sampled(scores: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the scores of positives [R] and noise [R, K]."""
    return scores[rows.contexts, rows.positives], scores[rows.contexts[:, None], rows.noise]


ESTIMATORS: dict[str, Estimator] = {
    "exact NLL": Estimator(_exact, (1,)),
    "partition NLL": Estimator(_partition, (10, 15)),
    "local NCE": Estimator(_local, (4,)),
    "local NCE, learned log Z": Estimator(_local, (4,), learns_log_z=True),
    "ranking NCE": Estimator(_ranking, (2,)),
    "InfoNCE, log q corrected": Estimator(_corrected_info_nce, (2,)),
    "InfoNCE": Estimator(_info_nce, (2,), q_power=1),
    "negative sampling": Estimator(_negative_sampling, (4,), q_power=1, shifted=True),
}
