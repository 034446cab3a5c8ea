"""Updates of the encoder by its loss alone, between those of RL, whose gradient stays out."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn
from typing_extensions import Self

from rl_infonce.networks.alignment import Alignment
from rl_infonce.networks.moving_average import MovingAverage
from rl_infonce.sb3.attach import AuxiliaryGradients
from rl_infonce.sb3.auxiliary_loss import AuxiliaryLoss
from rl_infonce.sb3.batch_sampling import SamplingPlan
from rl_infonce.sb3.encoders import Encoder
from rl_infonce.sb3.episode_index import Array
from rl_infonce.sb3.experience import Experience
from rl_infonce.sb3.input_selection import (
    InputSelection,
    increases_of_new_pairs,
    n_trainable_steps,
    with_means,
)
from rl_infonce.sb3.own_adam import OwnAdam
from rl_infonce.sb3.vector_encoder import VectorEncoder
from rl_infonce.settings import InfoNCESettings

N_PASSES = 6
"""How often a row of a rollout is an anchor, on average, where the settings do not say."""
LOSS_WEIGHT = 0.01
"""Weight of the loss: Adam cancels it, and the clipping and the epsilon were chosen with it."""
ON_POLICY_LEARNING_RATE = 1e-3
OFF_POLICY_LEARNING_RATE = 3e-4
ALIGN_FREQ = 8
"""Updates from one alignment of features to the next, at least."""
N_ALIGNED = 512
"""Observations, at most, on which features are aligned."""
_SELECTED = "selected inputs"


class UpdatesDue(NamedTuple):
    """How many updates the loss has now, and after how many of the host's, by SB3's count."""

    n_updates: int
    n_host_updates: int


def updates_due(
    algorithm: BaseAlgorithm, n_host_updates: int, settings: InfoNCESettings
) -> UpdatesDue:
    """Return how many updates the loss has after those of its host.

    Args:
        algorithm: The host.
        n_host_updates: SB3's count of the host's updates when the loss had its last ones.
        settings: Updates per rollout or gradient step, and pairs in each.
    """
    n_new = max(int(algorithm._n_updates) - n_host_updates, 0)
    rollout = _rollouts_of(algorithm)
    if rollout is None:
        n_turns, n_left = divmod(n_new, settings.infonce_interval)
        n_updates = n_turns * (settings.encoder_updates or 1)
        return UpdatesDue(n_updates, int(algorithm._n_updates) - n_left)
    n_rows = rollout.buffer_size * rollout.n_envs
    n_of_passes = math.ceil(N_PASSES * n_rows / settings.n_pairs)
    n_updates = (settings.encoder_updates or n_of_passes) if n_new else 0
    return UpdatesDue(n_updates, int(algorithm._n_updates))


def _spread_observations(experience: Experience) -> Array:
    """Return up to `N_ALIGNED` observations, spread evenly over steps and environments."""
    rows = np.arange(min(experience.n_steps * experience.n_envs, N_ALIGNED))
    steps = rows * experience.n_steps // max(len(rows), 1)
    return experience.observations(steps, rows % experience.n_envs)


def _rollouts_of(algorithm: BaseAlgorithm) -> Any:
    """Return the buffer of an on-policy algorithm, and None of an off-policy one."""
    return getattr(algorithm, "rollout_buffer", None)


def learning_rate_for(algorithm: BaseAlgorithm, settings: InfoNCESettings) -> float:
    """Return the learning rate of an isolated encoder: that of the settings, or of its host's kind.

    The usual ones were chosen by screenings of PPO and of SAC on vectors.
    """
    on_policy = _rollouts_of(algorithm) is not None
    usual = ON_POLICY_LEARNING_RATE if on_policy else OFF_POLICY_LEARNING_RATE
    return settings.encoder_learning_rate or usual


def aligns(algorithm: BaseAlgorithm, settings: InfoNCESettings) -> bool:
    """Return whether features are aligned: as the settings say, or after rollouts alone."""
    if settings.align_features is None:
        return _rollouts_of(algorithm) is not None
    return settings.align_features


class OwnUpdates(nn.Module):
    """What updates of an isolated encoder need: Adam, and what the policy reads instead.

    Args:
        encoder: What policy and loss share.
        heads: What the loss has alone.
        settings: Speed of the average, alignment, and sparsity and selection of the inputs.
    """

    def __init__(self, encoder: Encoder, heads: nn.Module, settings: InfoNCESettings) -> None:
        super().__init__()
        self.settings = settings
        self.adam = OwnAdam(_parameters(encoder, heads))
        self.average: MovingAverage | None = None
        if settings.policy_encoder_tau is not None:
            online = dict(encoder.named_parameters())
            self.average = MovingAverage(online, settings.policy_encoder_tau)
        self.selection: InputSelection | None = None
        if settings.select_inputs and isinstance(encoder, VectorEncoder):
            self.selection = InputSelection(len(encoder.means))
        self.alignment: Alignment | None = None
        if settings.align_features is not False:  # by default its host decides, when there is one
            self.alignment = Alignment(encoder.features_dim, self._what_is_read(encoder))

    def train(self, mode: bool = True) -> Self:
        """Note the mode, which changes nothing in the parts; SAC sets it six times a step."""
        self.training = mode
        return self

    def step(
        self,
        encoder: nn.Module,
        heads: nn.Module,
        gradients: AuxiliaryGradients,
        learning_rate: float,
    ) -> None:
        """Move encoder and heads against their gradients, and the average towards the encoder."""
        self.adam.step(_parameters(encoder, heads), gradients, learning_rate)
        if self.settings.input_sparsity and isinstance(encoder, VectorEncoder):
            encoder.shrink_inputs(self.settings.input_sparsity * learning_rate)
        if self.average is not None:
            self.average.update(dict(encoder.named_parameters()))

    def averages(self) -> dict[str, Tensor] | None:
        """Return the averaged parameters by name; None where the trained ones are read."""
        average = self.average
        return average.averages() if average is not None and average.has_begun else None

    def read(self, encoder: Encoder, observations: Tensor) -> Tensor:
        """Return what the policy receives: of inputs selected, by weights averaged, and aligned.

        A gradient reaches observations that ask for one, as for saliency, and no parameter.
        """
        wanted = torch.is_grad_enabled() and observations.requires_grad
        with torch.set_grad_enabled(wanted):
            if self.selection is not None and isinstance(encoder, VectorEncoder):
                observations = self.selection(observations, encoder.means)
            averages = self.averages()
            if wanted and averages is None:
                averages = {name: each.detach() for name, each in encoder.named_parameters()}
            encoded = encoder.encode(observations, averages)
            if self.alignment is not None and self.alignment.has_begun:
                encoded = encoded._replace(features=self.alignment(encoded.features))
            return encoder.output(observations, encoded)

    def numbers(self) -> dict[str, float]:
        """Return names of curves to what they show."""
        if self.selection is None:
            return {}
        return {"selected_inputs": float(self.selection.selected.sum())}

    @property
    def have_begun(self) -> bool:
        """Whether there was an update, of this encoder or of the one that it follows."""
        return self.adam.has_begun

    def n_updates(self, encoder: nn.Module) -> int:
        """Return how many updates have moved the encoder."""
        return int(self.adam.get_buffer("n_steps")[: len(list(encoder.parameters()))].max())

    def begin_alignment(self, encoder: Encoder) -> None:
        """Take the features before the first update for those to which later ones are aligned."""
        if self.alignment is not None and not self.alignment.has_begun:
            self.alignment.remember(self._what_is_read(encoder), self.n_updates(encoder))

    @torch.no_grad()
    def align(self, auxiliary: AuxiliaryLoss, experience: Experience) -> None:
        """Bring features to where they were at the last alignment, after `ALIGN_FREQ` updates.

        A buffer of fewer observations than features (or than `N_ALIGNED`) says too little of them.

        Args:
            auxiliary: The loss, on the encoder that was updated.
            experience: On whose observations features are to stay.
        """
        encoder, alignment = auxiliary.encoder, self.alignment
        if alignment is None or not alignment.has_begun:
            return
        n_updates = self.n_updates(encoder)
        if n_updates < alignment.n_updates + ALIGN_FREQ:
            return
        if experience.n_steps * experience.n_envs < min(encoder.features_dim, N_ALIGNED):
            return
        now = self._what_is_read(encoder)
        inputs = auxiliary.inputs(_spread_observations(experience), augment=False)
        former = alignment(_features_read(encoder, inputs, alignment.reference.averages()))
        if alignment.turn_back(_features_read(encoder, inputs, now), former):
            alignment.remember(now, n_updates)

    def before_updates(
        self,
        auxiliary: AuxiliaryLoss,
        experience: Experience,
        plan: SamplingPlan,
        algorithm: BaseAlgorithm,
    ) -> Experience:
        """Test the inputs, if that is due, and return what of the experience may train.

        Before the first updates it notes where features are, to which later ones are aligned. A
        rollout is new as a whole. The newest steps of a replay buffer train nothing until others
        are newer, so that there are pairs for tests.

        Args:
            auxiliary: The loss.
            experience: What its next updates draw from.
            plan: What belongs to a pair.
            algorithm: The host.
        """
        if aligns(algorithm, self.settings):
            self.begin_alignment(auxiliary.encoder)
        if self.selection is None:
            return experience
        is_rollout = _rollouts_of(algorithm) is not None
        n_trainable = 0 if is_rollout else n_trainable_steps(experience, max(plan.horizons))
        n_updates, n_steps = self.n_updates(auxiliary.encoder), algorithm.num_timesteps
        has_new_pairs = is_rollout or not self.selection.has_seen(n_steps)
        if has_new_pairs and self.selection.is_due(n_updates):
            increases = increases_of_new_pairs(auxiliary, experience, plan, n_trainable)
            if increases is not None:
                self.selection.count(increases, n_updates, n_steps)
        return experience if is_rollout else experience.part(0, n_trainable)

    def _what_is_read(self, encoder: nn.Module) -> dict[str, Tensor]:
        """Return all tensors on which the features depend that the policy reads."""
        tensors = self.averages() or dict(encoder.named_parameters())
        if self.selection is not None:
            tensors = {**tensors, _SELECTED: self.selection.selected.float()}
        return {**tensors, **dict(encoder.named_buffers())}

    @torch.no_grad()
    def hand_over(self, leader: nn.Module, follower: nn.Module, other: OwnUpdates) -> None:
        """Give an encoder the numbers that the policy reads of another one.

        Its average gets them also: SB3 copies parameters to target networks, and not what is read.
        Its count of steps says from then on that the loss has trained it.
        """
        read = self.averages() or dict(leader.named_parameters())
        for name, own in follower.named_parameters():
            own.copy_(read[name])
        _copy_buffers(leader, follower)
        other.adam.take_steps(self.adam)
        parts = ("average", "selection", "alignment")
        for mine, theirs in ((getattr(self, part), getattr(other, part)) for part in parts):
            if mine is not None and mine.has_begun:
                _copy_buffers(mine, theirs)


def _copy_buffers(source: nn.Module, target: nn.Module) -> None:
    for new, buffer in zip(source.buffers(), target.buffers(), strict=True):
        buffer.copy_(new)
    for new_part, part in zip(source.modules(), target.modules(), strict=True):
        if isinstance(new_part, MovingAverage) and isinstance(part, MovingAverage):
            part.has_begun = new_part.has_begun


def _features_read(encoder: Encoder, inputs: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Return the features of observations by what the policy reads or did read."""
    if _SELECTED in tensors:
        inputs = with_means(inputs, tensors[_SELECTED] > 0, tensors["normalizer.running_mean"])
    return encoder.encode(inputs, tensors).features


def _parameters(encoder: nn.Module, heads: nn.Module) -> list[nn.Parameter]:
    return [*encoder.parameters(), *heads.parameters()]
