"""The encoder of a user's own, made from the observation space."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_infonce.device import arithmetic
from rl_infonce.networks.moving_average import call_with
from rl_infonce.sb3.batch_encoding import Encoded, autocast
from rl_infonce.sb3.image_encoder import FixedScaleEncoder

MakeNetwork = Callable[[spaces.Box], nn.Module]
"""Observation space -> network from observations [K, ...] to features [K, D]."""


class CustomImageEncoder(FixedScaleEncoder):
    """A user's network, called `network`, from images to features, without a convolutional map.

    Args:
        space: One channels-first image.
        make: What makes the network of the space.
        precision: "fp32", "bf16" for bfloat16 autocast, or "auto" for what the device is fast at.

    Attributes:
        features_dim: D, of what is contrasted.
        output_dim: Size of what the policy receives, which is D also.
        local_shape: Empty: it is not known where the network has places.
        is_custom: True: a user made the network.

    Raises:
        TypeError: If `make` makes no network.
        ValueError: If the network gives no features [K, D].
    """

    local_shape: tuple[int, ...] = ()
    is_custom = True

    def __init__(self, space: spaces.Box, make: MakeNetwork, *, precision: str) -> None:
        super().__init__()
        self.precision = precision
        self.network, self.features_dim = custom_network(make, space)
        self.output_dim = self.features_dim

    @property
    def trunk(self) -> nn.Module:
        """The network."""
        return self.network

    def encode(self, observations: Tensor, averages: dict[str, Tensor] | None = None) -> Encoded:
        """Return features of preprocessed images.

        Args:
            observations: [K, C, H, W] float images.
            averages: Name to tensor used in place of the encoder's own parameters.
        """
        precision = arithmetic(self.precision, observations.device)
        with autocast(observations.device.type, precision):
            features = call_with(self.network, "network.", observations, averages)
        return Encoded(features.float() if precision == "bf16" else features, None)


def custom_network(make: MakeNetwork, space: spaces.Box) -> tuple[nn.Module, int]:
    """Return the network that a user's function makes of the observation space, and its D.

    Raises:
        TypeError: If a network is given in place of what makes one, or none is made.
        ValueError: If the network does not encode an observation as [1, D].
    """
    if isinstance(make, nn.Module):
        raise TypeError(
            "Expected `encoder` to be a class, or a function that makes a network of the "
            f"observation space, got a {type(make).__name__} itself, which actor and critic would "
            "share and each copy of the model would change. Pass `lambda space: ...`."
        )
    network = make(space)
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"Expected `encoder` to make a torch.nn.Module of the observation space, got "
            f"{type(network).__name__} from {make!r}."
        )
    if not any(True for _ in network.parameters()):
        raise ValueError(
            f"Expected `encoder` to make a network with weights to train, got a "
            f"{type(network).__name__} without any. Use SB3's FlattenExtractor for raw features."
        )
    with torch.no_grad():
        features = _encoded(network.eval(), torch.zeros(1, *space.shape))
    network.train()
    shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 1:
        raise ValueError(
            f"Expected `encoder` to make a network from observations {(1, *space.shape)} to "
            f"features (1, D), got {shape} from {type(network).__name__}. Flatten its output."
        )
    return network, features.shape[1]


def _encoded(network: nn.Module, observations: Tensor) -> object:
    try:
        return network(observations)
    except RuntimeError as error:
        raise ValueError(
            f"Expected `encoder` to make a network of observations {tuple(observations.shape)}, "
            f"got a {type(network).__name__}, which says: {error}. Take its sizes from the "
            "observation space that it is made of."
        ) from error
