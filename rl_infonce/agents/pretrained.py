"""Start an SB3 model from a pretrained encoder."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

from rl_infonce.files.tensor_file import shapes_of
from rl_infonce.networks.alignment import Alignment
from rl_infonce.networks.encoder_file import describe, load_encoder
from rl_infonce.networks.encoder_form import NATURE, EncoderForm
from rl_infonce.networks.moving_average import MovingAverage
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.sb3.image_encoder import ImageEncoder


def use_encoder(
    model: BaseAlgorithm, encoder: nn.Module | str | os.PathLike[str], *, freeze: bool = False
) -> None:
    """Give every features extractor of a model the weights of a pretrained encoder.

    The model must be built already, because SB3 draws the weights of PPO's and A2C's extractors
    anew after building them. Target networks also get the weights. In a model that was trained,
    averages of the former encoder begin anew, and the optimiser's moments of its weights stay.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from stable_baselines3.common.envs import FakeImageEnv
        >>> env = FakeImageEnv(screen_height=84, screen_width=84, n_channels=4, channel_first=True)
        >>> model = PPO("CnnPolicy", env)
        >>> encoder = PixelEncoder((4, 84, 84), generator=torch.Generator().manual_seed(0))
        >>> use_encoder(model, encoder, freeze=True)
        >>> bool((model.policy.features_extractor.cnn[0].weight == encoder.cnn[0].weight).all())
        True

    Args:
        model: A model with SB3's `NatureCNN` or `InfoNCEExtractor`.
        encoder: A `PixelEncoder`, or a file of `save_encoder` or `rl-infonce pretrain`.
        freeze: Whether RL and InfoNCE leave the encoder's weights alone. SB3 does not save this:
            call `freeze_encoder` after loading a model.

    Raises:
        TypeError: If the encoder is of another class.
        ValueError: If no extractor is of these classes, or architecture, form, shapes or
            preprocessing differ; the message names them, and the model is unchanged.
        OSError: If the file cannot be read.
    """
    source = pixel_encoder(encoder)
    extractors = _extractors(model)
    for extractor in extractors:
        _check_fit(model, extractor, source)
    for extractor in extractors:
        with torch.no_grad():
            for name, tensor in source.state_dict().items():
                extractor.get_parameter(name).copy_(tensor)
        for name in source.state_dict():
            extractor.get_parameter(name).requires_grad_(True)
        for part in extractor.modules():
            if isinstance(part, MovingAverage | Alignment):  # of the former encoder
                part.restart()
    if freeze:
        freeze_encoder(model)


def pixel_encoder(encoder: nn.Module | str | os.PathLike[str]) -> PixelEncoder:
    """Return a pretrained encoder that an agent can start from, given itself or its file."""
    found = encoder if isinstance(encoder, nn.Module) else load_encoder(Path(encoder))
    if not isinstance(found, PixelEncoder):
        raise TypeError(
            f"Expected `encoder` to be a PixelEncoder, which reads what agents see, got "
            f"{type(found).__name__}. Pretrain with --encoder nature or impala."
        )
    return found


def freeze_encoder(model: BaseAlgorithm) -> None:
    """Keep RL and InfoNCE from changing the weights of a model's encoders from now on.

    The normalisation of vectors stays also, once it has counted 2,000 of them: until then it goes
    on with each batch that is trained on. SB3 does not save this: call the function again after
    loading a model.
    """
    for extractor in _extractors(model):
        is_ours = isinstance(extractor, InfoNCEExtractor)
        for part in [extractor.encoder] if is_ours else [extractor.cnn, extractor.linear]:
            part.requires_grad_(False)


def _extractors(model: BaseAlgorithm) -> list[NatureCNN]:
    extractors = [each for each in model.policy.modules() if isinstance(each, NatureCNN)]
    if not extractors:
        raise ValueError(
            "Expected a model with NatureCNN or InfoNCEExtractor as its features extractor, got "
            f"a {type(model.policy).__name__} with neither."
        )
    return extractors


def _form_of(extractor: NatureCNN) -> EncoderForm:
    """Return what stands between the linear layers of an extractor of images."""
    encoder = extractor.encoder if isinstance(extractor, InfoNCEExtractor) else None
    return encoder.form if isinstance(encoder, ImageEncoder) else NATURE


def _check_fit(model: BaseAlgorithm, extractor: NatureCNN, source: PixelEncoder) -> None:
    got = {
        "images": source.image_shape,
        "pixels divided by": source.divide_by,
        **asdict(source.form),
        **shapes_of(source.state_dict()),
    }
    wanted = {
        "images": tuple(extractor._observation_space.shape or ()),
        "pixels divided by": 255 if getattr(model.policy, "normalize_images", True) else 1,
        **asdict(_form_of(extractor)),
        **shapes_of(dict(extractor.named_parameters())),
    }
    for key in got:
        expected = wanted.get(key)
        if got[key] != expected:
            raise ValueError(
                f"Expected an encoder that fits the model's {type(extractor).__name__}, got "
                f'"{describe(source)}": {key} {got[key]} instead of {expected}.'
            )
