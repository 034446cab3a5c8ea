"""Parts of encoders of vectors: normalisation of what comes in and of what comes out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_infonce.checks import check_shape

CLIP = 10.0
"""Largest absolute value of a normalised vector."""

_HUGE = 1e15

N_HIDDEN = 128
"""Units of the hidden layer of the network of vectors."""


class RunningNormalizer(nn.Module):
    """Vectors minus their running mean, over their running deviation, as `VecNormalize` does.

    Before the first `update` vectors pass unchanged. The names of the buffers begin with "running_"
    as those of a batch norm do, so that SB3 hands them to target networks.

    Args:
        size: Number n of dimensions.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
        self.register_buffer("running_count", torch.zeros(()))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors [..., n] with means of about 0 and deviations of about 1."""
        mean, variance = self.get_buffer("running_mean"), self.get_buffer("running_var")
        # A constant far from 0 has a deviation by rounding alone, of a ten-millionth.
        scale = (variance + 1e-8 + (1e-6 * mean).square()).rsqrt()
        return ((vectors - mean) * scale).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def update(self, vectors: Tensor) -> None:
        """Count vectors [K, n]; of these, numbers that are not finite, or huge, are left out.

        Environments say "nothing in sight" by such numbers. Above 1e15 float32 cannot sum squares.
        An input counts as it does in the rest of the batch, or else as it did before; vectors of
        which nothing is left do not count.

        Chan et al. 1979, eq. 2.1, for mean and variance of a union of two samples.
        """
        check_shape("vectors", vectors, ("K", self.get_buffer("running_mean").shape[0]))
        # A look at each number takes ten times as long.
        is_whole = bool(vectors.abs().sum() < _HUGE)
        if not is_whole:
            is_fit = vectors.abs() < _HUGE
            vectors = torch.where(is_fit, vectors, torch.nan)[is_fit.any(dim=1)]
        if not len(vectors):
            return
        mean, variance = self.get_buffer("running_mean"), self.get_buffer("running_var")
        count = self.get_buffer("running_count")
        total = count + len(vectors)
        new_share = len(vectors) / total
        average = torch.mean if is_whole else torch.nanmean
        own_mean = average(vectors, dim=0)
        own_variance = average((vectors - own_mean).square(), dim=0)  # `var`: five times as long
        if not is_whole:
            own_mean = torch.where(own_mean.isnan(), mean, own_mean)
            own_variance = torch.where(own_variance.isnan(), variance, own_variance)
        difference = own_mean - mean
        spread = own_variance + difference.square() * (count / total)
        mean += difference * new_share
        variance += (spread - variance) * new_share
        count.copy_(total)


def average_l1_norm(features: Tensor) -> Tensor:
    """Return features [..., D] whose absolute values have mean 1; zeros stay zeros.

    Fujimoto et al. 2023 (TD7), eq. 4.
    """
    return features / features.abs().mean(dim=-1, keepdim=True).clamp_min(1e-8)


class AverageL1Norm(nn.Module):
    """Features over the mean of their absolute values; see `average_l1_norm`."""

    def forward(self, features: Tensor) -> Tensor:
        """Return features [..., D] whose absolute values have mean 1."""
        return average_l1_norm(features)


def shrunk_columns(weight: Tensor, amount: Tensor) -> Tensor:
    """Return a matrix [m, n] whose columns are shorter by amounts [n]; shorter ones become zero.

    It is the proximal operator of the columns' Euclidean norms, weighted by `amount`, the group
    lasso (Yuan & Lin 2006; Parikh & Boyd 2014, section 6.5.4).
    """
    lengths = weight.norm(dim=0).clamp_min(torch.finfo(weight.dtype).tiny)
    shares: Tensor = (1 - amount / lengths).clamp_min(0)
    return weight * shares


def short_columns(weight: Tensor) -> Tensor:
    """Return which columns of a matrix [m, n] are shorter than half of the contraharmonic mean.

    That is the mean of the lengths in which each counts by its length, so that it stays near those
    of long columns where most are short. Shape [n], of bool.
    """
    lengths = weight.norm(dim=0)
    total = lengths.sum().clamp_min(torch.finfo(weight.dtype).tiny)
    is_short: Tensor = lengths < lengths.square().sum() / total / 2
    return is_short


class VectorMLP(nn.Sequential):
    """Network from n dimensions to D features of average L1 norm 1.

    It is the state encoder of TD7 (Fujimoto et al. 2023, pseudocode 1), whose ELU units do not die,
    with one hidden layer instead of two and half its width: beside networks for RL as small as
    those of SB3, the larger one takes most of the time.

    Args:
        size: n.
        features_dim: D.
    """

    def __init__(self, size: int, features_dim: int) -> None:
        super().__init__(
            nn.Linear(size, N_HIDDEN), nn.ELU(), nn.Linear(N_HIDDEN, features_dim), AverageL1Norm()
        )

    @staticmethod
    def with_weights(vectors: Tensor, weights: Mapping[str, Tensor], prefix: str = "") -> Tensor:
        """Return features of vectors [..., n], with tensors that are named as the parameters.

        torch's `functional_call` takes longer than these layers.
        """
        first, second = (
            (weights[f"{prefix}{layer}.weight"], weights[f"{prefix}{layer}.bias"]) for layer in "02"
        )
        hidden = functional.elu(functional.linear(vectors, *first))
        return average_l1_norm(functional.linear(hidden, *second))
