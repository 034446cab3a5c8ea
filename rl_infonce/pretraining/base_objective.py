"""What every pretraining objective is: frames to draw, an encoder, and a loss of what it says."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining.episode_frames import EpisodeFrames, IntArray

Encoded = tuple[Tensor, ...]
Encoder = STDIMEncoder | PixelEncoder
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class FrameBatch:
    """Frames of B samples of a batch that several ranks may share.

    Attributes:
        images: [B, L, C, H, W] uint8, the L frames of each sample.
        labels: Variable to [B] int64 of each sample's first frame; empty where nobody asks.
        seed: Seed for whatever an objective draws, the same on all ranks.
        first: Where in the batch of all ranks these samples begin.
        n_all: Number of samples of all ranks; None where these are all.
    """

    images: Tensor
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    seed: int = 0
    first: int = 0
    n_all: int | None = None

    def normal(self, n_features: int) -> Tensor:
        """Return standard normal noise [B, n_features], the same however many ranks share it.

        Every rank draws the noise of all and keeps its own: a number of features per sample, little
        beside encoding one.
        """
        generator = torch.Generator(self.images.device).manual_seed(self.seed)
        shape = (self.n_all or len(self.images), n_features)
        noise = torch.randn(shape, generator=generator, device=self.images.device)
        return noise[self.first : self.first + len(self.images)]


class PretrainingLoss(NamedTuple):
    """A loss, and how often the right answer came first.

    Attributes:
        loss: [] what is minimised.
        accuracy: [] in 0..1, detached. If the loss has several terms, the accuracy is that of the
            term which reads the features. NaN for objectives that pick nothing, and for
            `cpc`, which picks at 25 offsets at once.
    """

    loss: Tensor
    accuracy: Tensor


class PretrainingObjective(nn.Module, ABC):
    """An encoder with what trains it; its heads are thrown away afterwards.

    All objectives share what the paper's do not: Adam with eps 1e-5 (CPC's is 1e-8 there), a
    learning rate that rises and falls over the budget, early stopping on the validation loss, and
    the best weights. The published code keeps a constant rate, judges some objectives by accuracy,
    and keeps the last weights.

    `encode` treats every sample on its own, `loss` may compare them: so a large batch can be
    encoded in parts, or on several machines.

    Args:
        encoder: An `STDIMEncoder`, or a `PixelEncoder` of stacked frames.
        generator: Source of the initial weights of the heads.

    Attributes:
        encoder: What is kept.
        horizon: Frames from now to the future: as many as the image has channels, so that two
            stacks of gray frames share none. Images of one frame in colour are paired three frames
            apart: set it to 1 before training. `cpc` leaves out offsets below the number of
            channels in any case.
        contrasts: Whether the samples of a batch are one another's negatives.
        default_batch_size: Samples per step.
        frame_offsets: The L frames of a sample, counted from its first one; None for that frame and
            the one a horizon later.
    """

    contrasts: ClassVar[bool] = True
    default_batch_size: ClassVar[int] = 64
    frame_offsets: ClassVar[Sequence[int] | None] = None

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__()
        if not hasattr(encoder, "local_features"):
            raise TypeError(
                "Expected `encoder` to be an STDIMEncoder or a PixelEncoder, whose map has places, "
                f"got {type(encoder).__name__}."
            )
        self.encoder = encoder
        self.horizon = encoder.image_shape[0]

    def draw(self, frames: EpisodeFrames, n_samples: int, rng: np.random.Generator) -> IntArray:
        """Return the rows [B, L] of B samples."""
        return draw_rows(frames, n_samples, self.frame_offsets or (0, self.horizon), rng)

    def encode(self, images: Tensor) -> Encoded:
        """Return what the loss needs to know of images [B, L, C, H, W]: here features [B, L, D]."""
        features: Tensor = self.encoder(images.flatten(0, 1))
        return (features.view(*images.shape[:2], -1),)

    @abstractmethod
    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the loss of encoded samples; `encoded` is float32."""


def draw_rows(
    frames: EpisodeFrames, n_samples: int, offsets: Sequence[int], rng: np.random.Generator
) -> IntArray:
    """Return rows [B, L] at fixed offsets from distinct starts within episodes, equally likely.

    The L offsets ascend from 0. Fewer than B starts are an error: a repeated one would be its own
    negative.
    """
    starts = frames.starts(offsets[-1] + 1)
    if len(starts) < n_samples:
        raise ValueError(
            f"Expected at least {n_samples} frames with {offsets[-1]} more of their episode after "
            f"them, one for each sample of a batch, got {len(starts)}. Collect more frames, or "
            "lower the batch size."
        )
    chosen = rng.choice(starts, size=n_samples, replace=False)
    rows: IntArray = chosen[:, None] + np.asarray(offsets)
    return rows


def fresh_linear(n_inputs: int, n_outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with torch's usual initial weights, from `generator`."""
    return fresh(lambda: nn.Linear(n_inputs, n_outputs), generator)


def fresh(make: Callable[[], Module], generator: torch.Generator) -> Module:
    """Return the layers that `make` builds with torch's usual initial weights, from `generator`."""
    with torch.device("meta"):  # elsewhere the layers would draw from torch's global stream
        module = make()
    _draw_default_weights_(module.to_empty(device=generator.device), generator)
    return module


def _draw_default_weights_(module: nn.Module, generator: torch.Generator) -> None:
    """Fill linear, convolutional and recurrent layers as torch does, from `generator`, in place."""
    for layer in module.modules():
        own = dict(layer.named_parameters(recurse=False))
        if not own:
            continue
        if isinstance(layer, nn.RNNBase):
            fan_in = layer.hidden_size
        else:
            fan_in = math.prod(own["weight"].shape[1:])
        bound = 1 / math.sqrt(fan_in)
        with torch.no_grad():
            for parameter in own.values():
                parameter.uniform_(-bound, bound, generator=generator)
