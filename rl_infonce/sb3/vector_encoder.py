"""The encoder of a vector, whose features stand for the observation or behind it."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_infonce.networks.moving_average import call_with
from rl_infonce.networks.vectors import RunningNormalizer, VectorMLP, short_columns, shrunk_columns
from rl_infonce.sb3.batch_encoding import Encoded, autocast
from rl_infonce.sb3.custom_encoder import MakeNetwork, custom_network

N_COUNTED_FROZEN = 2000
"""Vectors that a frozen network counts: batches right after a reset are much alike."""


class VectorEncoder(nn.Module):
    """Running normalisation `normalizer` and a network `mlp`.

    Args:
        space: One vector.
        features_dim: Number D of features, >= 1.
        precision: "fp32" or "auto", or "bf16" for bfloat16 autocast, which so small a network is
            no faster with.
        with_observation: Whether the policy receives the observation beside its features.
        make: What makes another network in place of `VectorMLP`, whose outputs then say D.

    Attributes:
        features_dim: D, of what is contrasted.
        output_dim: Size of what the policy receives.
        local_shape: Empty: a vector has no places.
        is_custom: Whether a user made the network.
    """

    local_shape: tuple[int, ...] = ()

    def __init__(
        self,
        space: spaces.Box,
        features_dim: int,
        *,
        precision: str,
        with_observation: bool,
        make: MakeNetwork | None = None,
    ) -> None:
        super().__init__()
        (size,) = space.shape
        self.precision = precision
        self.with_observation = with_observation
        self.is_custom = make is not None
        self.normalizer = RunningNormalizer(size)
        self.mlp: nn.Module
        if make is None:
            self.mlp, self.features_dim = VectorMLP(size, features_dim), features_dim
        else:
            self.mlp, self.features_dim = custom_network(make, space)
        self.output_dim = self.features_dim + size * with_observation

    @property
    def trunk(self) -> nn.Module:
        """What is learned, from prepared vectors to features."""
        return self.mlp

    @torch.no_grad()
    def shrink_inputs(self, amount: float) -> None:
        """Shorten the weights of each input by the length of a change of all by `amount`.

        When half of the norm is left that torch draws, this goes on for short ones alone: later
        layers make up for weights that are all short, so that useful ones would vanish also. SB3
        redraws the weights of PPO and its relatives, and the same norm is the end there. Frozen
        weights stay.
        """
        weight = self.mlp.get_parameter("0.weight")
        if weight.requires_grad:
            drawn = (len(weight) / 3) ** 0.5  # from +-1 / n ** 0.5, for n columns
            chosen = short_columns(weight) | (weight.norm() > drawn / 2)
            weight.copy_(shrunk_columns(weight, chosen * amount * len(weight) ** 0.5))

    @property
    def means(self) -> Tensor:
        """Running means [n] of the inputs."""
        return self.normalizer.get_buffer("running_mean")

    @property
    def has_statistics(self) -> bool:
        """Whether vectors were counted; before, they pass unchanged."""
        return bool(self.normalizer.get_buffer("running_count") > 0)

    def prepared(self, observations: Tensor) -> Tensor:
        """Return vectors [K, n] as the trunk sees them."""
        return self.normalizer(observations)  # type: ignore[no-any-return]

    def update_statistics(self, observations: Tensor) -> None:
        """Take note of the vectors [K, n] that the host trains on.

        A frozen network takes note of batches until they are some thousand vectors: its features
        are to stand still then.
        """
        is_frozen = not any(parameter.requires_grad for parameter in self.mlp.parameters())
        count = self.normalizer.get_buffer("running_count")
        if not (is_frozen and bool(count >= N_COUNTED_FROZEN)):
            self.normalizer.update(observations)

    def encode(self, observations: Tensor, averages: dict[str, Tensor] | None = None) -> Encoded:
        """Return features of vectors.

        Args:
            observations: [K, n] floats.
            averages: Name to tensor used in place of the encoder's own parameters, and in place of
                what normalises if that is among them.
        """
        with autocast(observations.device.type, self.precision):
            if averages is None or "normalizer.running_mean" not in averages:
                vectors = self.prepared(observations)
            else:
                vectors = call_with(self.normalizer, "normalizer.", observations, averages)
            if averages is not None and isinstance(self.mlp, VectorMLP):
                features = self.mlp.with_weights(vectors, averages, "mlp.")
            else:
                features = call_with(self.mlp, "mlp.", vectors, averages)
        return Encoded(features.float() if self.precision == "bf16" else features, None)

    def output(self, observations: Tensor, encoded: Encoded) -> Tensor:
        """Return what the policy receives: features [K, D], or behind observations [K, n + D]."""
        if not self.with_observation:
            return encoded.features
        return torch.cat([observations, encoded.features], dim=1)
