"""Which encoder an observation gets."""

from __future__ import annotations

from gymnasium import spaces

from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.sb3.arguments import ExtractorArguments
from rl_infonce.sb3.custom_encoder import CustomImageEncoder
from rl_infonce.sb3.image_encoder import ImageEncoder
from rl_infonce.sb3.spaces import is_vector
from rl_infonce.sb3.vector_encoder import VectorEncoder

Encoder = ImageEncoder | VectorEncoder | CustomImageEncoder
"""From preprocessed observations to features, and to what the policy receives."""


def make_encoder(space: spaces.Box, given: ExtractorArguments) -> Encoder:
    """Return an encoder of an image or of a vector, untrained unless it is the user's own.

    Raises:
        TypeError: If the user's own is no network.
        ValueError: If images are too small, or the user's own network gives no features.
    """
    make = None if isinstance(given.encoder, str) else given.encoder
    if is_vector(space):
        return VectorEncoder(
            space,
            given.features_dim or 64,
            precision=given.precision,
            with_observation=bool(given.with_observation),
            make=make,
        )
    if make is not None:
        return CustomImageEncoder(space, make, precision=given.precision)
    return ImageEncoder(
        space,
        given.features_dim or 512,
        encoder=str(given.encoder or "nature"),
        precision=given.precision,
        channels_last=given.channels_last,
        form=EncoderForm(**given.of_encoder),
    )
