"""Which encoder an observation gets."""

from __future__ import annotations

from gymnasium import spaces

from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.sb3.arguments import ExtractorArguments
from rl_infonce.sb3.image_encoder import ImageEncoder
from rl_infonce.sb3.spaces import is_vector
from rl_infonce.sb3.vector_encoder import VectorEncoder

Encoder = ImageEncoder | VectorEncoder
"""From preprocessed observations to features, and to what the policy receives."""


def make_encoder(space: spaces.Box, given: ExtractorArguments) -> Encoder:
    """Return an untrained encoder of an image or of a vector.

    Raises:
        ValueError: If an argument is out of range, or images are too small.
    """
    if is_vector(space):
        return VectorEncoder(
            space,
            given.features_dim or 64,
            precision=given.precision,
            with_observation=given.with_observation,
        )
    return ImageEncoder(
        space,
        given.features_dim or 512,
        encoder=given.encoder or "nature",
        precision=given.precision,
        channels_last=given.channels_last,
        form=EncoderForm(**given.of_encoder),
    )
