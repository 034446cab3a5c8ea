"""What stands between the linear layers of an image encoder: non-linearities and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rl_infonce.networks.vectors import AverageL1Norm
from rl_infonce.settings import ENCODER_SETTINGS

SIMPLEX_SIZE = 8
"""Features in a group of `SimplicialEmbedding`."""


class CReLU(nn.Module):
    """[ReLU(x), ReLU(-x)] (Shang et al. 2016), by which Abbas et al. 2023 keep agents plastic.

    Of the two halves of a unit, one has a gradient wherever the input is not 0.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [K, 2C, ...] of inputs [K, C, ...]."""
        return torch.cat([inputs.relu(), (-inputs).relu()], dim=1)


class SimplicialEmbedding(nn.Module):
    """A softmax in each group of eight features (Lavoie et al. 2022, figure 2a).

    Obando-Ceron et al. 2025 put it in front of the heads of actor and critic, against units that
    fall asleep and features that collapse.
    """

    def forward(self, features: Tensor) -> Tensor:
        """Return features [K, D], D a multiple of 8, as probabilities in groups, which sum to 1."""
        groups = features.reshape(*features.shape[:-1], -1, SIMPLEX_SIZE)
        return torch.softmax(groups, dim=-1).flatten(-2)


# ELU is Clevert et al. 2016, eq. 15.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU, "crelu": CReLU}
"""Non-linearities of the trunk, by name."""


@dataclass(frozen=True, kw_only=True)
class EncoderForm:
    """What stands between the linear layers of an image encoder; the default is NatureCNN's.

    Args:
        activation: Non-linearity of the trunk: "relu", "elu" or "crelu". CReLU doubles what comes
            out of each convolution.
        normalization: "layer" for a layer norm before every non-linearity (Ba et al. 2016, eq. 3),
            of all units of a layer together, with a gain and a bias per channel; or "none".
        feature_activation: What becomes of the last linear layer's outputs: a non-linearity,
            "linear" for nothing, "average_l1" (Fujimoto et al. 2023, TD7) or "simplicial"; None
            for `activation`.

    Raises:
        ValueError: If an argument is not one of these.
    """

    activation: str = "relu"
    normalization: str = "none"
    feature_activation: str | None = None

    def __post_init__(self) -> None:
        for name, each in ENCODER_SETTINGS.items():
            value = getattr(self, name)
            if value is not None or not each.none:
                each.kind.check(name, value)
        if self.feature_activation == self.activation:  # equal forms are to compare equal
            object.__setattr__(self, "feature_activation", None)

    @property
    def of_features(self) -> str:
        """What becomes of the last linear layer's outputs, by name."""
        return self.feature_activation or self.activation

    @property
    def changes(self) -> dict[str, Any]:
        """What is not as in NatureCNN, by name."""
        usual = asdict(NATURE)
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    def n_channels(self, n_outputs: int) -> int:
        """Return how many channels the non-linearity makes of a convolution's outputs."""
        return 2 * n_outputs if self.activation == "crelu" else n_outputs

    def n_features(self, n_outputs: int) -> int:
        """Return how many features come out of a last linear layer of so many outputs."""
        return 2 * n_outputs if self.of_features == "crelu" else n_outputs

    def behind_convolution(self, size: int) -> list[nn.Module]:
        """Return what stands behind a convolution of so many outputs."""
        return [*self._norm(size), ACTIVATIONS[self.activation]()]

    def head(self, n_inputs: int, features_dim: int) -> nn.Sequential:
        """Return the layers from a flattened map to D features.

        A `ValueError` names a D that is not a multiple of what stands together.
        """
        group = {"crelu": 2, "simplicial": SIMPLEX_SIZE}.get(self.of_features, 1)
        if features_dim % group:
            raise ValueError(
                f"Expected `features_dim` to be a multiple of {group} with features that are "
                f"{self.of_features!r}, got {features_dim}."
            )
        n_outputs = features_dim // self.n_features(1)
        return nn.Sequential(
            nn.Linear(n_inputs, n_outputs), *self._norm(n_outputs), *self._last(self.of_features)
        )

    def _norm(self, size: int) -> list[nn.Module]:
        # one group: statistics over all units of the layer, channels and places
        return [nn.GroupNorm(1, size)] if self.normalization == "layer" else []

    def _last(self, name: str) -> list[nn.Module]:
        match name:
            case "linear":
                return []
            case "average_l1":
                return [AverageL1Norm()]
            case "simplicial":
                return [SimplicialEmbedding()]
        return [ACTIVATIONS[name]()]


NATURE = EncoderForm()
"""ReLU everywhere, and nothing else."""
