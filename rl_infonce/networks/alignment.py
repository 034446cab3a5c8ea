"""Features that stay where they were while their encoder learns."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rl_infonce.networks.moving_average import MovingAverage

TIE = 0.001
"""Weight of the former rotation, in mean variances of a feature: it decides where none varies."""


def procrustes(features: Tensor, former: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rotation Q and the shift c that bring features closest to what they were.

    The orthogonal Procrustes problem (Schönemann 1966) on centred features: Q minimises the mean
    of |features Q + c - former|^2, plus `TIE` mean variances of `former` times |Q - rotation|^2.
    The second term is ours: it decides where features do not vary. Q may also mirror.

    Args:
        features: [K, D], K >= 2.
        former: [K, D] features of the same observations before.
        rotation: [D, D] orthogonal, used until now.

    Returns:
        Q [D, D], orthogonal, and c [D].
    """
    means = features.mean(dim=0), former.mean(dim=0)
    deviations = former - means[1]
    covariance = (features - means[0]).T @ deviations / len(features)
    tie = TIE * deviations.square().mean() + 1e-12  # where all are constant, it alone decides
    left, _, right = torch.linalg.svd(covariance + tie * rotation)
    turned = left @ right
    return turned, means[1] - means[0] @ turned


class Alignment(nn.Module):
    """A rotation and a shift of features, which are buffers: no optimiser moves them.

    Distances between features stay, and so does the loss of their encoder, which does not see the
    alignment.

    Args:
        features_dim: Number D of features.
        tensors: Parameters and buffers of the encoder, by name.

    Attributes:
        reference: A copy of the tensors at the last alignment.
    """

    def __init__(self, features_dim: int, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.reference = MovingAverage(tensors, tau=1.0)  # which only ever copies
        self.register_buffer("rotation", torch.eye(features_dim))
        self.register_buffer("shift", torch.zeros(features_dim))
        self.register_buffer("aligned_at", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        """Return features [K, D], turned and shifted."""
        return torch.addmm(self.get_buffer("shift"), features, self.get_buffer("rotation"))

    @property
    def has_begun(self) -> bool:
        """Whether there are features to which later ones are aligned."""
        return self.reference.has_begun

    @property
    def n_updates(self) -> int:
        """Updates of the encoder before the last alignment."""
        return int(self.get_buffer("aligned_at"))

    def remember(self, tensors: Mapping[str, Tensor], n_updates: int) -> None:
        """Take the encoder after `n_updates` for the one to which later features are aligned."""
        self.reference.update(tensors)
        self.get_buffer("aligned_at").fill_(n_updates)

    def restart(self) -> None:
        """Turn and shift nothing, until features are remembered once more."""
        self.reference.restart()
        self.get_buffer("rotation").copy_(torch.eye(len(self.get_buffer("shift"))))
        for name in ("shift", "aligned_at"):
            self.get_buffer(name).zero_()

    @torch.no_grad()
    def turn_back(self, features: Tensor, former: Tensor) -> bool:
        """Bring features to where they were, and return whether they could be.

        They cannot if there are fewer than two, or if their squares are not finite.

        Args:
            features: [K, D] of the encoder now.
            former: [K, D] that the policy read of the same observations before.
        """
        squares = features.square().sum() + former.square().sum()
        if len(features) < 2 or not torch.isfinite(squares):
            return False
        rotation, shift = procrustes(features, former, self.get_buffer("rotation"))
        self.get_buffer("rotation").copy_(rotation)
        self.get_buffer("shift").copy_(shift)
        return True
