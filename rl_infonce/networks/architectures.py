"""Image encoders, from images `[K, C, H, W]` to a convolutional map or to features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_infonce.checks import check_choice, check_shape, check_uint8
from rl_infonce.networks.encoder_form import NATURE, EncoderForm


def nature_trunk(in_channels: int, form: EncoderForm = NATURE) -> nn.Sequential:
    """Return the three convolutions of the Nature DQN (Mnih et al. 2015) as SB3 builds them.

    The layers and their order equal `stable_baselines3`'s `NatureCNN.cnn` without the flattening,
    so state dicts and the use of the random stream agree, unless another form is asked for.
    """
    layers: list[nn.Module] = []
    for channels, kernel_size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        layers += [
            nn.Conv2d(in_channels, channels, kernel_size, stride),
            *form.behind_convolution(channels),
        ]
        in_channels = form.n_channels(channels)
    return nn.Sequential(*layers)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions added to their input (Espeholt et al. 2018, figure 3)."""

    def __init__(self, channels: int, form: EncoderForm = NATURE) -> None:
        super().__init__()
        n_inputs = form.n_channels(channels)
        self.before_first = nn.Sequential(*form.behind_convolution(channels))
        self.first = nn.Conv2d(n_inputs, channels, kernel_size=3, padding=1)
        self.before_second = nn.Sequential(*form.behind_convolution(channels))
        self.second = nn.Conv2d(n_inputs, channels, kernel_size=3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps of the same shape `[K, C, H, W]`."""
        hidden = self.before_second(self.first(self.before_first(maps)))
        residual: Tensor = self.second(hidden)
        return maps + residual


def impala_trunk(in_channels: int, form: EncoderForm = NATURE) -> nn.Sequential:
    """Return IMPALA's residual encoder (Espeholt et al. 2018, figure 3) of widths 16, 32, 32."""
    layers: list[nn.Module] = []
    for channels in (16, 32, 32):
        layers += [
            nn.Conv2d(in_channels, channels, kernel_size=3, padding=1),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
            ResidualBlock(channels, form),
            ResidualBlock(channels, form),
        ]
        in_channels = channels
    return nn.Sequential(*layers, *form.behind_convolution(channels))


class STDIMEncoder(nn.Module):
    """The encoder of ST-DIM's table (Anand et al. 2019), from one gray screen to 256 features.

    It has four convolutions without downsampling beforehand, then one linear layer without a
    nonlinearity, orthogonal weights with ReLU's gain and zero biases; 1,124,896 parameters.

    Args:
        generator: Source of the initial weights; None leaves the parameters on the meta device, for
            `load_state_dict(..., assign=True)`.
    """

    image_shape = (1, 210, 160)
    features_dim = 256
    local_dim = 128
    n_places = 11 * 8

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        with torch.device("meta"):  # otherwise the layers would draw from torch's global stream
            self.local = nn.Sequential(
                nn.Conv2d(1, 32, kernel_size=8, stride=4),
                nn.ReLU(),
                nn.Conv2d(32, 64, kernel_size=4, stride=2),
                nn.ReLU(),
                nn.Conv2d(64, 128, kernel_size=4, stride=2),
                nn.ReLU(),
            )
            self.head = nn.Sequential(
                nn.Conv2d(128, 64, kernel_size=3, stride=1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(64 * 9 * 6, self.features_dim),
            )
        if generator is not None:
            self.to_empty(device=generator.device)
            randomise_(self, generator)

    def local_features(self, images: Tensor) -> Tensor:
        """Return the map `[K, 128, 11, 8]` of screens `[K, 1, 210, 160]`, uint8 in 0..255."""
        check_shape("images", images, ("K", *self.image_shape))
        check_uint8("images", images)
        maps: Tensor = self.local(images.to(self.dtype) / 255)
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """Return features `[K, 256]` of screens `[K, 1, 210, 160]`, uint8 in 0..255."""
        features: Tensor = self.head(self.local_features(images))
        return features

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the weights."""
        return next(self.parameters()).dtype


ENCODERS = {"nature": (nature_trunk, 36), "impala": (impala_trunk, 8)}
"""Function of the channel count, and smallest accepted image side, by name of the encoder."""


def make_trunk(
    name: str, image_shape: tuple[int, ...], form: EncoderForm = NATURE
) -> nn.Sequential:
    """Return the convolutional trunk called `name` for channels-first images.

    A `ValueError` names an unknown encoder, or images that are smaller than it accepts.
    """
    check_choice("encoder", name, ENCODERS)
    build, smallest = ENCODERS[name]
    channels, height, width = image_shape
    if min(height, width) < smallest:
        small = [other for other, (_, side) in ENCODERS.items() if side <= min(height, width)]
        choose = f", or choose encoder={small[0]!r}, which accepts them" if small else ""
        raise ValueError(
            f"Expected images of at least {smallest}x{smallest} pixels for encoder={name!r}, "
            f"got {height}x{width}. Resize the observations{choose}."
        )
    return build(channels, form)


def conv_output_shape(trunk: nn.Module, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width of the map that `trunk` makes from one image."""
    with torch.no_grad():
        shape = trunk(torch.zeros(1, *image_shape)).shape
    return int(shape[1]), int(shape[2]), int(shape[3])


def randomise_(module: nn.Module, generator: torch.Generator) -> None:
    """Fill every parameter with orthogonal weights and zero biases from `generator`, in place.

    Gains of normalisations become 1.
    """
    with torch.no_grad():
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if parameter.dim() > 1:
                    nn.init.orthogonal_(parameter, gain=2**0.5, generator=generator)
                else:
                    is_gain = isinstance(part, nn.GroupNorm) and name == "weight"
                    parameter.fill_(float(is_gain))
