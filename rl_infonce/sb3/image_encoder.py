"""An image encoder in SB3's clothes: NatureCNN's names, another trunk, layout or precision."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import NatureCNN
from torch import Tensor, nn

from rl_infonce.checks import check_choice, check_count, check_flag
from rl_infonce.networks.architectures import conv_output_shape, make_trunk
from rl_infonce.networks.moving_average import call_with
from rl_infonce.sb3.batch_encoding import Encoded


class ImageEncoder(NatureCNN):
    """A convolutional trunk `cnn` and a layer `linear`, as in NatureCNN.

    A subclass of NatureCNN, because SB3 treats its subclasses as encoders of images.

    Args:
        space: One channels-first image.
        features_dim: Number D of features, >= 1.
        encoder: "nature" or "impala".
        precision: "fp32", or "bf16" for bfloat16 autocast.
        channels_last: Whether convolutions run channels-last.

    Attributes:
        local_shape: C, H, W of the convolutional map.

    Raises:
        ValueError: If an argument is out of range or the images are too small.
    """

    def __init__(
        self,
        space: spaces.Box,
        features_dim: int,
        *,
        encoder: str,
        precision: str,
        channels_last: bool,
    ) -> None:
        check_count("features_dim", features_dim)
        check_flag("channels_last", channels_last)
        check_choice("precision", precision, ("fp32", "bf16"))
        # NatureCNN's own constructor asserts, and builds layers that are not needed.
        super(NatureCNN, self).__init__(space, features_dim)
        trunk = make_trunk(encoder, space.shape)
        self.precision = precision
        self.channels_last = channels_last
        self.local_shape = conv_output_shape(trunk, space.shape)
        self.cnn = nn.Sequential(*trunk, nn.Flatten())
        self.linear = nn.Sequential(nn.Linear(math.prod(self.local_shape), features_dim), nn.ReLU())

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def encode(self, observations: Tensor, averages: dict[str, Tensor] | None = None) -> Encoded:
        """Return features and convolutional map of preprocessed images.

        Args:
            observations: [K, C, H, W] float images.
            averages: Name to tensor used in place of the encoder's own parameters.
        """
        if self.channels_last:
            observations = observations.contiguous(memory_format=torch.channels_last)
        with _autocast(observations.device.type, self.precision):
            flat = call_with(self.cnn, "cnn.", observations, averages)
            features = call_with(self.linear, "linear.", flat, averages)
        if self.precision == "bf16":
            features = features.float()
        return Encoded(features, flat.reshape(-1, *self.local_shape))

    def encoder_parameters(self) -> dict[str, nn.Parameter]:
        """Return name to parameter of `cnn` and `linear`, which the host's loss also trains."""
        return {n: p for n, p in self.named_parameters() if n.startswith(("cnn.", "linear."))}


def _autocast(device_type: str, precision: str) -> contextlib.AbstractContextManager[Any]:
    if precision == "bf16":
        return torch.autocast(device_type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
