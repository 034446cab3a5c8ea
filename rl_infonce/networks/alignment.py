"""Features that stay where they were while their encoder learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_infonce.networks.moving_average import MovingAverage

TIE = 0.001
"""Weight of the former rotation, in mean variances of a feature: noise turns no unused direction"""


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
        parameters: Those of the encoder, by name.

    Attributes:
        reference: The encoder at the last alignment.
    """

    def __init__(self, features_dim: int, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.reference = MovingAverage(parameters, tau=1.0)
        self.register_buffer("rotation", torch.eye(features_dim))
        self.register_buffer("shift", torch.zeros(features_dim))

    def forward(self, features: Tensor) -> Tensor:
        """Return features [K, D], turned and shifted."""
        return torch.addmm(self.get_buffer("shift"), features, self.get_buffer("rotation"))

    @torch.no_grad()
    def follow(self, features: Tensor, former: Tensor) -> None:
        """Bring features to where they were, unless they are not finite.

        Args:
            features: [K, D] of the encoder now, K >= 2.
            former: [K, D] that the policy read of the same observations before.
        """
        if torch.isfinite(features).all() and torch.isfinite(former).all():
            rotation, shift = procrustes(features, former, self.get_buffer("rotation"))
            self.get_buffer("rotation").copy_(rotation)
            self.get_buffer("shift").copy_(shift)
