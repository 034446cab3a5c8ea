"""PixelEncoder, from raw uint8 images to features, including all preprocessing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_infonce.checks import check_choice, check_count, check_flag, check_shape, check_uint8
from rl_infonce.device import arithmetic
from rl_infonce.networks.architectures import conv_output_shape, make_trunk, randomise_
from rl_infonce.networks.encoder_form import NATURE, EncoderForm
from rl_infonce.settings import PRECISIONS


class PixelEncoder(nn.Module):
    """A convolutional trunk `cnn` and a layer `linear`, whose inputs are an emulator's images.

    It computes what `NatureCNN` and `InfoNCEExtractor` make of an observation inside an SB3
    policy, operation for operation, and holds their tensors under their names, without SB3.

    Args:
        image_shape: Channels, height, width.
        features_dim: Number of features D, >= 1.
        generator: Source of the initial weights (orthogonal with ReLU's gain, zero biases, as SB3
            initialises PPO's); None leaves the parameters on the meta device, for
            `load_state_dict(..., assign=True)`.
        encoder: "nature" or "impala".
        divide_by: Divisor of the pixels: 255, or 1 for policies with normalize_images=False.
        precision: "fp32", "bf16" for bfloat16 autocast, or "auto" for what the device is fast at.
        channels_last: Whether convolutions run channels-last.
        form: What stands between the linear layers; NatureCNN's ReLU if it is not given.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If an argument is out of range or the images are too small.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        features_dim: int = 512,
        *,
        generator: torch.Generator | None,
        encoder: str = "nature",
        divide_by: int = 255,
        precision: str = "fp32",
        channels_last: bool = False,
        form: EncoderForm = NATURE,
    ) -> None:
        super().__init__()
        if len(image_shape) != 3:
            raise ValueError(
                f"Expected `image_shape` to be (channels, height, width), got {image_shape!r}."
            )
        for size in image_shape:
            check_count("image_shape", size)
        check_count("features_dim", features_dim)
        if divide_by not in (1, 255):
            raise ValueError(f"Expected `divide_by` to be 255 or 1, got {divide_by!r}.")
        check_choice("precision", precision, PRECISIONS)
        check_flag("channels_last", channels_last)
        channels, height, width = map(int, image_shape)  # JSON refuses integers of numpy
        self.image_shape = (channels, height, width)
        self.features_dim = int(features_dim)
        self.encoder = encoder
        self.divide_by = int(divide_by)
        self.precision = precision
        self.channels_last = channels_last
        self.form = form
        with torch.device("meta"):  # otherwise the layers would draw from torch's global stream
            trunk = make_trunk(encoder, self.image_shape, form)
            map_shape = conv_output_shape(trunk, self.image_shape)
            self.local_dim, self.n_places = map_shape[0], map_shape[1] * map_shape[2]
            self.cnn = nn.Sequential(*trunk, nn.Flatten())
            self.linear = form.head(math.prod(map_shape), self.features_dim)
        if generator is not None:
            self.to_empty(device=generator.device)
            randomise_(self, generator)

    def forward(self, images: Tensor) -> Tensor:
        """Return features [K, D] of images [K, C, H, W], uint8 in 0..255."""
        half = arithmetic(self.precision, images.device) == "bf16"
        autocast = torch.autocast(images.device.type, dtype=torch.bfloat16)
        with autocast if half else contextlib.nullcontext():
            features = self.head(self.local_features(images))
        return features.float()

    def local_features(self, images: Tensor) -> Tensor:
        """Return the map [K, local_dim, height, width] that the trunk makes from images."""
        check_shape("images", images, ("K", *self.image_shape))
        check_uint8("images", images)
        pixels = images.float()
        if self.divide_by != 1:
            pixels = pixels / self.divide_by
        if self.channels_last:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        maps: Tensor = self.cnn[:-1](pixels)
        return maps

    def head(self, maps: Tensor) -> Tensor:
        """Return features [K, D] of a map from `local_features`."""
        features: Tensor = self.linear(maps.flatten(1))
        return features
