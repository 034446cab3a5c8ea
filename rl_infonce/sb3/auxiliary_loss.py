"""The auxiliary loss on a batch: observations in, features, loss and gradients out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from torch import Tensor, nn

from rl_infonce.nce import info_nce
from rl_infonce.networks.moving_average import MovingAverage
from rl_infonce.networks.random_shift import random_shift
from rl_infonce.objective import (
    ContrastBatch,
    ObjectiveShape,
    TemporalInfoNCE,
    TemporalInfoNCELoss,
)
from rl_infonce.sb3.attach import AuxiliaryGradients, auxiliary_gradients, carried_gradients
from rl_infonce.sb3.batch_encoding import (
    Encoded,
    contrast_batch,
    contrast_minibatch,
    encode_actions,
    preprocess,
)
from rl_infonce.sb3.batch_sampling import ObservationBatch
from rl_infonce.sb3.encoders import Encoder
from rl_infonce.sb3.minibatch import MinibatchPairs
from rl_infonce.settings import InfoNCESettings


class AuxiliaryResult(NamedTuple):
    """What the loss has seen and found.

    Attributes:
        batch: Encoded anchors and futures.
        loss: The loss, with its graph, and what it says.
        of_minibatch: Whether anchors and candidates are rows of RL's minibatch.
    """

    batch: ContrastBatch
    loss: TemporalInfoNCELoss
    of_minibatch: bool = False

    @property
    def features(self) -> Tensor:
        """Features [B, D] of the anchors."""
        return self.batch.context[:, -1]


@dataclass(frozen=True)
class AuxiliaryLoss:
    """Temporal InfoNCE on one encoder, from raw observations.

    Attributes:
        encoder: What the loss trains beside its heads.
        space: Space of one observation.
        heads: Critics, and what predicts.
        target: Averaged encoder of the positives; None where the settings ask for none.
        horizons: K gaps in agent steps, ascending.
        rng: The session's stream, from which augmentation and tests of inputs draw.
        normalize_images: Whether the policy divides images by 255.
        action_space: Space of the actions that predictions see; None if they see none.
    """

    encoder: Encoder
    space: spaces.Space[Any]
    heads: TemporalInfoNCE
    target: MovingAverage | None
    horizons: tuple[int, ...]
    rng: np.random.Generator
    normalize_images: bool
    action_space: spaces.Space[Any] | None

    def __call__(self, raw: ObservationBatch) -> AuxiliaryResult:
        """Return features and loss of raw observations, and move the target encoder."""
        if self.target is not None and not self.target.has_begun:
            self.target.update(dict(self.encoder.named_parameters()))  # drawn anew since, perhaps
        # The encoder itself is no part of SB3's policy, whose mode its parts have.
        with training(*self.encoder.children(), self.heads):
            batch = self.encode(raw)
            result = AuxiliaryResult(batch, self.heads(batch, self.horizons))
        if self.target is not None:
            self.target.update(dict(self.encoder.named_parameters()))
        return result

    @torch.no_grad()
    def losses(self, raw: ObservationBatch) -> Tensor:
        """Return the InfoNCE loss [B] of each pair, by the first term; nothing is moved by it.

        A loss without negatives has one here also, by its cosines over the temperature.
        """
        found = self.heads(self.encode(raw, watch=False), self.horizons)
        losses = info_nce(found.scores, mask=found.mask, validate_args=False)
        return losses.mean(dim=0)

    def encode(self, raw: ObservationBatch, *, watch: bool = True) -> ContrastBatch:
        """Return features and maps of anchors and futures.

        Args:
            raw: Observations that were drawn.
            watch: Whether an isolated encoder takes note of them.
        """
        averages = None if self.target is None else self.target.averages()

        def encode(observations: npt.NDArray[np.generic]) -> Encoded:
            inputs = self.inputs(observations)
            # Otherwise the host's own batches are watched.
            if watch and self.heads.settings.isolated:
                self.encoder.update_statistics(inputs)
            return self.encoder.encode(inputs)

        def encode_target(observations: npt.NDArray[np.generic]) -> Encoded:
            return self.encoder.encode(self.inputs(observations), averages)

        settings = self.heads.settings
        return contrast_batch(
            raw,
            encode,
            encode_target if settings.stops_gradient else None,
            spatial=settings.uses_maps,
            actions=self._encoded_actions(raw.actions),
        )

    def of_minibatch(self, encoded: Encoded, pairs: MinibatchPairs) -> AuxiliaryResult:
        """Return features and loss of pairs of rows that RL has encoded.

        Args:
            encoded: RL's minibatch, or a copy of it.
            pairs: Which rows are contrasted; futures that it lacks are encoded here.
        """
        settings = self.heads.settings
        missing = None
        if len(pairs.missing):
            with torch.set_grad_enabled(not settings.stops_gradient):
                missing = self.encoder.encode(self.inputs(pairs.missing))
        batch = contrast_minibatch(
            encoded,
            missing,
            pairs,
            spatial=settings.uses_maps,
            stops_gradient=settings.stops_gradient,
            actions=self._encoded_actions(pairs.actions),
        )
        return AuxiliaryResult(batch, self.heads(batch, self.horizons), of_minibatch=True)

    def _encoded_actions(self, actions: npt.NDArray[np.generic] | None) -> Tensor | None:
        if actions is None or self.action_space is None:
            return None
        return encode_actions(actions, self.action_space, self.device)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.encoder.parameters()).device

    def inputs(
        self, observations: npt.NDArray[np.generic] | Tensor, *, augment: bool = True
    ) -> Tensor:
        """Return observations as SB3 preprocesses them, converted on the encoder's device."""
        inputs = torch.as_tensor(observations).to(self.device)
        if augment and self.heads.settings.augmentation == "random_shift":
            inputs = random_shift(inputs, self.rng)
        return preprocess(inputs, self.space, normalize_images=self.normalize_images)

    def gradients(self, loss: Tensor) -> AuxiliaryGradients:
        """Return the gradients of a loss on what is trained: the encoder first, then the heads."""
        return auxiliary_gradients(loss, self.shared, trained(self.heads.parameters()))

    def carried(self, encoded: Encoded, copy: Encoded, loss: Tensor) -> AuxiliaryGradients:
        """Return the gradients of a loss of a detached copy, which what RL encoded carries on."""
        heads = trained(self.heads.parameters())
        return carried_gradients(loss, encoded.tensors, copy.tensors, self.shared, heads)

    @property
    def shared(self) -> list[torch.nn.Parameter]:
        """The parameters of the encoder that are trained."""
        return trained(self.encoder.parameters())


@contextlib.contextmanager
def training(*modules: nn.Module) -> Iterator[None]:
    """Put modules into training mode, and afterwards those back that were not in it.

    Isolated encoders rest in evaluation mode, and so do others between RL's updates.
    """
    resting = [module for module in modules if not module.training]
    for module in resting:
        module.train()
    try:
        yield
    finally:
        for module in resting:
            module.eval()


def trained(parameters: Any) -> list[torch.nn.Parameter]:
    """Return those of some parameters that require a gradient."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def new_heads(
    encoder: Encoder,
    settings: InfoNCESettings,
    n_horizons: int,
    action_space: spaces.Space[Any] | None,
    rng: np.random.Generator,
) -> TemporalInfoNCE:
    """Return critics and predictors for the features of an encoder, on the CPU.

    Args:
        encoder: Whose features and maps are contrasted.
        settings: Which heads there are.
        n_horizons: K.
        action_space: Space of the actions that predictions see; None if they see none.
        rng: Source of the initial weights.
    """
    n_channels, *sides = encoder.local_shape or (0,)
    shape = ObjectiveShape(
        features_dim=encoder.features_dim,
        local_dim=n_channels,
        n_horizons=n_horizons,
        action_dim=0 if action_space is None else get_flattened_obs_dim(action_space),
        n_places=math.prod(sides),
    )
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    return TemporalInfoNCE(settings, shape, generator=generator)


def new_target(encoder: Encoder, settings: InfoNCESettings) -> MovingAverage | None:
    """Return the averaged encoder of the positives, or None where the settings ask for none."""
    tau = settings.target_encoder_tau
    if tau is None or tau == 1:
        return None
    return MovingAverage(dict(encoder.named_parameters()), tau)


def are_equal(heads: TemporalInfoNCE, others: TemporalInfoNCE) -> bool:
    """Return whether two modules hold the same weights, on whatever devices."""
    pairs = zip(heads.state_dict().values(), others.state_dict().values(), strict=True)
    return all(torch.equal(a.cpu(), b) for a, b in pairs)
