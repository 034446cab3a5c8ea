"""InfoNCEExtractor: an encoder in SB3's clothes that also trains itself on the future."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import cleandoc
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from torch import Tensor

from rl_infonce.networks.random_shift import random_shift
from rl_infonce.objective import TemporalInfoNCE, TemporalInfoNCELoss
from rl_infonce.sb3.arguments import (
    ExtractorArguments,
    arguments_in_words,
    extractor_arguments,
    signature_of,
)
from rl_infonce.sb3.attach import AuxiliaryGradients
from rl_infonce.sb3.auxiliary_loss import (
    AuxiliaryLoss,
    AuxiliaryResult,
    are_equal,
    new_heads,
    new_target,
)
from rl_infonce.sb3.batch_encoding import Encoded
from rl_infonce.sb3.batch_sampling import SamplingPlan
from rl_infonce.sb3.binding import constructing_algorithm, is_built_off_policy, known_action_space
from rl_infonce.sb3.encoders import Encoder, make_encoder
from rl_infonce.sb3.experience import Experience
from rl_infonce.sb3.hosted import HostedExtractor
from rl_infonce.sb3.minibatch import MinibatchPairs
from rl_infonce.sb3.own_updates import LOSS_WEIGHT, OwnUpdates, learning_rate_for
from rl_infonce.sb3.reporting import Observed, numbers_of
from rl_infonce.sb3.spaces import check_observation_space, is_vector, resolve_horizons
from rl_infonce.sb3.updates import draw, find_pairs, finite_gradients, unpadded

_UNTRAINED = "The isolated encoder of InfoNCEExtractor does not train at all"


class InfoNCEExtractor(HostedExtractor):
    """Features extractor that adds a temporal InfoNCE loss to whatever algorithm trains it.

    The loss is InfoNCE (van den Oord et al. 2018) on pairs from the algorithm's own data. On
    images the backward of the algorithm carries `infonce_coef` times its gradient. On vectors
    (`isolated=True`) it alone trains the encoder, when the next rollout begins. SB3's random
    streams stay as they were; `infonce_coef=0` trains the same network bit for bit without it.

    By default `cnn` and `linear` are NatureCNN's, so a state dict without the `infonce.` entries is
    one of NatureCNN. SB3 chooses the hidden layers by the extractor's class: to compare with
    `NatureCNN` on images, pass `net_arch=[]` (PPO, A2C, DQN and their relatives) or `[256, 256]`
    (TD3) on both sides.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from stable_baselines3.common.envs import FakeImageEnv
        >>> env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=4, channel_first=True)
        >>> kwargs = {"features_extractor_class": InfoNCEExtractor}
        >>> model = PPO("CnnPolicy", env, n_steps=64, batch_size=32, policy_kwargs=kwargs, seed=0)
        >>> model.learn(64).policy.features_extractor.last_infonce["loss"] > 0
        True

    Args:
        observation_space: A vector, or a channels-first uint8 image, at least 36x36 for "nature".
        arguments: The fields of `ExtractorArguments`, as keywords. The defaults shown are those of
            the preset "cpc"; a setting of the loss, from `infonce_coef` to `precision`, that is not
            given, or is None, takes the preset's value.

    Raises:
        TypeError: If the observation space is not a Box, or an argument has the wrong type.
        ValueError: If an argument is out of range; the message names it.
    """

    @signature_of(ExtractorArguments)
    def __init__(
        self, observation_space: spaces.Space[Any], features_dim: int | None = None, **kwargs: Any
    ) -> None:
        host = {"off_policy": kwargs.get("auto_bind", True) and is_built_off_policy()}
        own = {"features_dim": features_dim, **kwargs}
        given = extractor_arguments(own, vectors=is_vector(observation_space), **host)
        space = check_observation_space(observation_space, normalized_image=given.normalized_image)
        # NatureCNN, of which SB3 wants a subclass, would build layers that are not needed.
        super(NatureCNN, self).__init__(space, features_dim=1)
        self._add_encoder(make_encoder(space, given))
        self.settings = given.of_loss
        self.horizons = resolve_horizons(given.horizons, space.shape, given.objective)
        self.auto_bind, self.observation_key = given.auto_bind, given.observation_key
        self.last_infonce = {}
        algorithm = constructing_algorithm() if given.auto_bind else None
        self._action_space: spaces.Space[Any] | None = None
        if given.action_conditioning:
            self._action_space = known_action_space(given.action_space, look_up=given.auto_bind)
        self._plan = SamplingPlan(self.settings, self.horizons)
        seed = given.seed if given.seed is not None else getattr(algorithm, "seed", None)
        self.begin_session(seed)
        self.infonce_coef = given.infonce_coef
        self.infonce = self._new_heads(self._session.rng)
        self.target = new_target(self.encoder, self.settings)
        self.own_updates = None
        if self.settings.isolated:
            self.own_updates = OwnUpdates(self.encoder, self.infonce, self.settings)
        if algorithm is not None:
            self.bind(algorithm)

    def _add_encoder(self, encoder: Encoder) -> None:
        """Take over the parts of an encoder under their own names, which are NatureCNN's."""
        self.__dict__["encoder"] = encoder  # as a part it would lengthen their names
        for name, part in encoder.named_children():
            self.add_module(name, part)
        self._features_dim = encoder.output_dim

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a part that is replaced is the encoder's part also."""
        super().__setattr__(name, value)
        encoder = self.__dict__.get("encoder")
        if encoder is not None and name in encoder._modules:
            setattr(encoder, name, value)

    def _new_heads(self, rng: np.random.Generator) -> TemporalInfoNCE:
        return new_heads(self.encoder, self.settings, len(self.horizons), self._action_space, rng)

    def reseed_heads(self, former: np.random.Generator) -> None:
        """Draw heads anew from the session's stream if they are as `former` made them."""
        untouched, drawn = self._new_heads(former), self._new_heads(self._session.rng)
        if are_equal(self.infonce, untouched):
            self.infonce.load_state_dict(drawn.state_dict())

    # -- forward ---------------------------------------------------------------------------------

    def forward(self, observations: Tensor) -> Tensor:
        """Return features [K, D], behind vectors [K, n] if `with_observation` says so.

        While the host trains, the backward through what is returned carries the loss, unless the
        encoder is isolated.

        Args:
            observations: [K, C, H, W] or [K, n], floats, preprocessed by SB3.
        """
        self._session.warn_unless_finite(observations)
        self._warn_if_uncounted(observations)
        if self.own_updates is not None and self.is_isolated:
            self._session.warn_if_unbound(self.training and torch.is_grad_enabled(), _UNTRAINED)
            return self.own_updates.read(self.encoder, observations)
        # Both flags: SAC's target critic runs with gradients on, rollouts with training on.
        if not (self.training and torch.is_grad_enabled() and self._is_updating()):
            return self.encoder.output(observations, self.encoder.encode(observations))
        host = self._session.algorithm if self.auto_bind else None
        self.encoder.update_statistics(unpadded(observations, host))
        # First, so that the graph of drawn pairs is freed before the host's is built.
        found: MinibatchPairs | AuxiliaryGradients | None = self._pairs_or_gradients(observations)
        if self.settings.augment_observations:
            observations = random_shift(observations, self._session.rng)
        # To be compared with RL's they need their own graph, before RL's: memory holds one of them.
        compares = self._session.counts.next_rare_details_due or self.settings.max_grad_ratio
        if isinstance(found, MinibatchPairs) and compares:
            found = self._gradients_of(found, self.encoder.encode(observations))
        encoded = self.encoder.encode(observations)
        if isinstance(found, MinibatchPairs):
            found = self._gradients_of(found, encoded.detached(), encoded)
        return self._attach(self.encoder.output(observations, encoded), found)  # type: ignore[no-any-return]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _pairs_or_gradients(
        self, observations: Tensor
    ) -> MinibatchPairs | AuxiliaryGradients | None:
        """Return pairs of RL's minibatch or gradients of drawn ones; None in a pass without."""
        attaches = self.infonce_coef > 0 and self._session.may_attach()
        if not attaches or (self.auto_bind and self._session.looks_again()):
            return None
        if not self._session.counts.takes_turn(self.settings.infonce_interval):
            return None
        experience = self.experience()
        if experience is None:
            return None
        pairs = find_pairs(experience, self._plan, self._session, observations)
        return self.drawn_gradients(experience, self.infonce_coef) if pairs is None else pairs

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _gradients_of(
        self, pairs: MinibatchPairs, own: Encoded, carrier: Encoded | None = None
    ) -> AuxiliaryGradients | None:
        """Return gradients of a graph of their own, or of a copy, which a carrier takes on."""
        auxiliary = self._auxiliary_loss()
        result = auxiliary.of_minibatch(own, pairs)
        self._session.counts.n_updates += 1
        weighted = self.infonce_coef * self._plan.minibatch_share * result.loss.loss
        carried = None if carrier is None else partial(auxiliary.carried, carrier, own)
        gradients = finite_gradients(carried or auxiliary.gradients, weighted, self._session)
        self._report(result, auxiliary, lambda: pairs.observed)  # last, when the graph is freed
        return gradients

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attach(self, features: Tensor, gradients: AuxiliaryGradients | None) -> Tensor:
        session, max_ratio = self._session, self.settings.max_grad_ratio
        report = self._publish if session.counts.details_due else None
        return session.attachment.attach(features, gradients, report, max_ratio)

    # -- updates of its own ----------------------------------------------------------------------

    def updates_alone(
        self, experience: Experience, algorithm: BaseAlgorithm, n_due: int, followers: list[Any]
    ) -> None:
        """Make updates of an isolated encoder, and give their result to the followers."""
        if self.own_updates is None:
            return
        try:
            if n_due and self.infonce_coef > 0:
                self._update(self.own_updates, experience, algorithm, n_due)
        finally:  # also after Ctrl-C, as the policy may go on
            self.own_updates.align(self._auxiliary_loss(), experience)
            for follower in followers:
                self.own_updates.hand_over(self.encoder, follower.encoder, follower.own_updates)

    def _update(
        self, own: OwnUpdates, experience: Experience, algorithm: BaseAlgorithm, n_updates: int
    ) -> None:
        auxiliary = self._auxiliary_loss()
        rate = self._session.steering.share * learning_rate_for(algorithm, self.settings)
        rows = own.before_updates(auxiliary, experience, self._plan, algorithm)
        for _ in range(n_updates):
            found = self.drawn_gradients(rows, LOSS_WEIGHT)
            if found is not None:
                own.step(self.encoder, auxiliary.heads, found, rate)

    # -- the auxiliary loss ----------------------------------------------------------------------

    def infonce_loss(self, experience: Experience) -> TemporalInfoNCELoss | None:
        """Return the loss on pairs freshly drawn from `experience`, with its graph.

        Diagnostics go to the algorithm's logger and to `last_infonce`. The loss is None, after one
        warning, where fewer than two pairs are legal.
        """
        session = self._session
        raw = draw(experience, self._plan, session)
        if raw is None:
            self._publish({"n_pairs": 0.0})
            return None
        auxiliary = self._auxiliary_loss()
        result = auxiliary(raw)
        session.counts.n_updates += 1
        self._report(result, auxiliary, lambda: raw.observed)
        return result.loss

    def drawn_gradients(self, experience: Experience, weight: float) -> AuxiliaryGradients | None:
        """Return the gradients of `infonce_loss` times a weight, if it is there and finite."""
        loss = self.infonce_loss(experience)
        if loss is None:
            return None
        weighted = weight * loss.loss
        return finite_gradients(self._auxiliary_loss().gradients, weighted, self._session)

    def _report(
        self, result: AuxiliaryResult, auxiliary: AuxiliaryLoss, observed: Callable[[], Observed]
    ) -> None:
        numbers = numbers_of(observed, result, auxiliary, self._session)
        own = {} if self.own_updates is None else self.own_updates.numbers()
        share = self._plan.minibatch_share if result.of_minibatch else 1.0
        self._publish({**numbers, **own, "coef": share * self.infonce_coef})

    def _auxiliary_loss(self) -> AuxiliaryLoss:
        policy = getattr(self._session.algorithm, "policy", None)
        return AuxiliaryLoss(
            encoder=self.encoder,
            space=self._observation_space,
            heads=self.infonce,
            target=self.target,
            horizons=self.horizons,
            rng=self._session.rng,
            normalize_images=bool(getattr(policy, "normalize_images", True)),
            action_space=self._action_space,
        )


if InfoNCEExtractor.__doc__:  # None under python -OO
    # Without the indentation, which Python 3.13 takes off and others keep.
    _head, _raises = cleandoc(InfoNCEExtractor.__doc__).split("\n\nRaises:")
    InfoNCEExtractor.__doc__ = f"{_head}\n{arguments_in_words()}\n\nRaises:{_raises}"
