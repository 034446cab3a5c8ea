"""The encoder of an image: NatureCNN's names, another trunk, form, layout or precision."""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_infonce.device import arithmetic
from rl_infonce.networks.architectures import conv_output_shape, make_trunk
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.moving_average import call_with
from rl_infonce.sb3.batch_encoding import Encoded, autocast


class FixedScaleEncoder(nn.Module):
    """What encoders of images share: inputs of known bounds, and features that the policy reads."""

    def prepared(self, observations: Tensor) -> Tensor:
        """Return images as the trunk sees them: unchanged."""
        return observations

    def update_statistics(self, observations: Tensor) -> None:
        """Take note of what the host trains on: nothing, as images have fixed bounds."""

    def output(self, observations: Tensor, encoded: Encoded) -> Tensor:
        """Return what the policy receives: the features [K, D]."""
        del observations
        return encoded.features


class ImageEncoder(FixedScaleEncoder):
    """A convolutional trunk `cnn` and a layer `linear`, named as in NatureCNN.

    Args:
        space: One channels-first image.
        features_dim: Number D of features, >= 1.
        encoder: "nature" or "impala".
        precision: "fp32", "bf16" for bfloat16 autocast, or "auto" for what the device is fast at.
        channels_last: Whether convolutions run channels-last.
        form: What stands between the linear layers.

    Attributes:
        features_dim: D, of what is contrasted.
        output_dim: Size of what the policy receives, which is D also.
        local_shape: C, H, W of the convolutional map.
        is_custom: Whether a user made the trunk.

    Raises:
        ValueError: If the images are too small.
    """

    is_custom = False

    def __init__(
        self,
        space: spaces.Box,
        features_dim: int,
        *,
        encoder: str,
        precision: str,
        channels_last: bool,
        form: EncoderForm,
    ) -> None:
        super().__init__()
        trunk = make_trunk(encoder, space.shape, form)
        self.precision = precision
        self.channels_last = channels_last
        self.form = form
        self.features_dim = self.output_dim = features_dim
        self.local_shape: tuple[int, ...] = conv_output_shape(trunk, space.shape)
        self.cnn = nn.Sequential(*trunk, nn.Flatten())
        self.linear = form.head(math.prod(self.local_shape), features_dim)

    @property
    def trunk(self) -> nn.Module:
        """The convolutions, from prepared images to the flattened map."""
        return self.cnn

    def encode(self, observations: Tensor, averages: dict[str, Tensor] | None = None) -> Encoded:
        """Return features and convolutional map of preprocessed images.

        Args:
            observations: [K, C, H, W] float images.
            averages: Name to tensor used in place of the encoder's own parameters.
        """
        if self.channels_last:
            observations = observations.contiguous(memory_format=torch.channels_last)
        precision = arithmetic(self.precision, observations.device)
        with autocast(observations.device.type, precision):
            flat = call_with(self.cnn, "cnn.", observations, averages)
            features = call_with(self.linear, "linear.", flat, averages)
        if precision == "bf16":
            features = features.float()
        return Encoded(features, flat.reshape(-1, *self.local_shape))
