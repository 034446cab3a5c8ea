"""InfoNCEExtractor: an image encoder in SB3's clothes that also trains itself on the future."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor

from rl_infonce.checks import check_number
from rl_infonce.networks.moving_average import MovingAverage
from rl_infonce.networks.random_shift import random_shift
from rl_infonce.objective import TemporalInfoNCE, TemporalInfoNCELoss
from rl_infonce.sb3.arguments import (
    ExtractorArguments,
    arguments_in_words,
    extractor_arguments,
    signature_of,
)
from rl_infonce.sb3.attach import Attachment, AuxiliaryGradients
from rl_infonce.sb3.auxiliary_loss import AuxiliaryLoss, are_equal, new_heads, new_target
from rl_infonce.sb3.batch_sampling import sampling_plan
from rl_infonce.sb3.binding import (
    check_host,
    constructing_algorithm,
    is_gradient_free,
    is_part_of,
    is_updating,
    known_action_space,
    training_algorithm,
    unfit_for_attaching,
)
from rl_infonce.sb3.experience import Experience
from rl_infonce.sb3.image_encoder import ImageEncoder
from rl_infonce.sb3.reporting import Reporter
from rl_infonce.sb3.session import Session, Steering
from rl_infonce.sb3.spaces import check_image_space, resolve_horizons
from rl_infonce.sb3.updates import draw, finite_gradients

_STREAM = 0x1F0CE
"""Keeps the pairs' random stream apart from others grown from the same seed."""


class InfoNCEExtractor(ImageEncoder):
    """Features extractor that adds a temporal InfoNCE loss to whatever algorithm trains it.

    While the host trains, every forward draws anchors from the host's own buffer, encodes them and
    their futures, and lets the host's backward carry `infonce_coef` times the gradient of the
    InfoNCE loss (van den Oord et al. 2018). Rollouts, evaluation and target networks stay as they
    were, and so do SB3's random streams. With `infonce_coef=0` training is bit-identical to the
    same network without the loss.

    `cnn` and `linear` are NatureCNN's, so a state dict without the `infonce.` entries is one of
    NatureCNN. SB3 chooses the hidden layers by the extractor's class: to compare with `NatureCNN`,
    pass `net_arch=[]` (PPO, A2C, DQN and their relatives) or `[256, 256]` (TD3) on both sides.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from stable_baselines3.common.envs import FakeImageEnv
        >>> env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=4, channel_first=True)
        >>> kwargs = {"features_extractor_class": InfoNCEExtractor}
        >>> model = PPO("CnnPolicy", env, n_steps=64, batch_size=32, policy_kwargs=kwargs, seed=0)
        >>> model.learn(64).policy.features_extractor.last_infonce["loss"] > 0
        True

    Args:
        observation_space: One channels-first uint8 image, at least 36x36 for "nature".
        arguments: The fields of `ExtractorArguments`, as keywords. The defaults shown are those of
            the preset "cpc"; a setting that is not given, or is None, takes the preset's value.

    Raises:
        TypeError: If the observation space is not a Box, or an argument has the wrong type.
        ValueError: If an argument is out of range; the message names it.
    """

    @signature_of(ExtractorArguments)
    def __init__(self, observation_space: spaces.Space[Any], *args: Any, **kwargs: Any) -> None:
        given = extractor_arguments(*args, **kwargs)
        space = check_image_space(observation_space, normalized_image=given.normalized_image)
        super().__init__(
            space,
            given.features_dim,
            encoder=given.encoder,
            precision=given.precision,
            channels_last=given.channels_last,
        )
        self.settings = given.of_loss
        self.infonce_coef = given.infonce_coef
        self.horizons = resolve_horizons(given.horizons, space.shape)
        self.max_grad_ratio = given.max_grad_ratio
        self.auto_bind, self.image_key = given.auto_bind, given.image_key
        self.last_infonce: dict[str, float] = {}

        algorithm = constructing_algorithm() if given.auto_bind else None
        self._action_space: spaces.Space[Any] | None = None
        if given.action_conditioning:
            self._action_space = known_action_space(given.action_space, look_up=given.auto_bind)
        known = given.seed if given.seed is not None else getattr(algorithm, "seed", None)
        self._chance_seed: int | None = None
        if known is None:
            known = self._chance_seed = secrets.randbits(128)
        self._session = Session(_stream(known), given.image_key)
        self._attachment = Attachment()
        self._reporter = Reporter()
        self._add_heads(algorithm)
        if algorithm is not None:
            self.bind(algorithm)

    def _new_heads(self, rng: np.random.Generator) -> TemporalInfoNCE:
        return new_heads(self, self.settings, len(self.horizons), self._action_space, rng)

    def _add_heads(self, algorithm: BaseAlgorithm | None) -> None:
        self.infonce: TemporalInfoNCE | None = None
        self.target: MovingAverage | None = None
        if algorithm is not None and is_gradient_free(algorithm):
            # Its perturbations cover every parameter, so that heads would change the search.
            self._session.warn_once("unfit", f"InfoNCE is off: {unfit_for_attaching(algorithm)}.")
            return
        self.infonce = self._new_heads(self._session.rng)
        self.target = new_target(self, self.settings)

    # -- binding ---------------------------------------------------------------------------------

    def bind(self, model: BaseAlgorithm) -> None:
        """Draw pairs from this algorithm's buffer from now on; it is held weakly.

        The binding ends when training starts and the algorithm's policy has no such extractor. The
        first algorithm's seed, where none was known before, is that of pairs and new heads.

        Raises:
            TypeError: If `model` is no algorithm of SB3.
            ValueError: If a horizon does not fit into the algorithm's rollouts, or its emulator
                skips frames twice.
        """
        check_host(model, self.horizons if self.infonce_coef > 0 else ())
        self._session.bind(model)
        self._take_seed(model.seed)

    def _take_seed(self, seed: int | None) -> None:
        """Draw again what chance drew, but heads only if neither trained nor loaded since."""
        chance, self._chance_seed = self._chance_seed, None
        if chance is None or seed is None:
            return
        self._session.rng = _stream(seed)
        former, drawn = self._new_heads(_stream(chance)), self._new_heads(self._session.rng)
        if self.infonce is not None and are_equal(self.infonce, former):
            self.infonce.load_state_dict(drawn.state_dict())

    def train(self, mode: bool = True) -> InfoNCEExtractor:
        """Set training or evaluation mode; at the start of training, check the binding."""
        super().train(mode)
        session = self.__dict__.get("_session")
        if mode and session is not None:
            self._check_binding(session)
        return self

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check_binding(self, session: Session) -> None:
        algorithm = session.algorithm
        if algorithm is not None and not is_part_of(self, algorithm):
            session.bind(None)
        if session.algorithm is None and self.auto_bind:
            algorithm = training_algorithm()
            if algorithm is not None and is_part_of(self, algorithm):
                self.bind(algorithm)

    @property
    def infonce_coef(self) -> float:
        """Weight of the loss: the schedule's while `learn()` runs with one, else its own."""
        scheduled = self._session.steering.infonce_coef
        return self._own_coef if scheduled is None else scheduled

    @infonce_coef.setter
    def infonce_coef(self, coef: float) -> None:
        check_number("infonce_coef", coef, at_least=0)
        self._own_coef = coef

    def steer(self, *, decoupled: bool = False, infonce_coef: float | None = None) -> None:
        """Change the loss until `learn()` ends; without a weight the extractor's own holds."""
        check_number("infonce_coef", infonce_coef or 0.0, at_least=0)
        self._session.steer(Steering(decoupled, infonce_coef))

    # -- forward ---------------------------------------------------------------------------------

    def forward(self, observations: Tensor) -> Tensor:
        """Return features [K, D]; while the host trains, their backward carries the loss.

        Args:
            observations: [K, C, H, W] float images, preprocessed by SB3.
        """
        # Both flags: SAC's target critic runs with gradients on, rollouts with training on.
        if not (self.training and torch.is_grad_enabled() and self._is_updating()):
            return self.encode(observations).features
        self._compute_gradients()  # first, so that its graph is freed before the host's is built
        if self.settings.augment_observations:
            observations = random_shift(observations, self._session.rng)
        features: Tensor = self._attach(self.encode(observations).features)
        return features

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _is_updating(self) -> bool:
        """Return whether the bound algorithm asks: SB3 leaves policies in training mode."""
        algorithm = self._session.algorithm
        return algorithm is None or not self.auto_bind or is_updating(algorithm)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _compute_gradients(self) -> None:
        """Leave the gradients of the weighted loss ready to attach."""
        self._attachment.pending = None
        may_attach = self.infonce_coef > 0 and self._session.may_attach()
        experience = self.experience() if may_attach else None
        loss = None if experience is None else self.infonce_loss(experience)
        if loss is not None:
            self._attachment.pending = self.weighted_gradients(loss)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attach(self, features: Tensor) -> Tensor:
        report = self._publish if self._session.counts.details_due else None
        return self._attachment.attach(features, report, self.max_grad_ratio)

    # -- the auxiliary loss ----------------------------------------------------------------------

    def experience(self) -> Experience | None:
        """Return what the bound algorithm has recorded; None, after one warning, if unreadable."""
        return self._session.experience()

    def infonce_loss(self, experience: Experience) -> TemporalInfoNCELoss | None:
        """Return the loss on pairs freshly drawn from `experience`, with its graph.

        Diagnostics go to the algorithm's logger and to `last_infonce`. The loss is None, after one
        warning, where fewer than two pairs are legal.
        """
        if self.infonce is None:
            return None
        session = self._session
        with_actions = self._action_space is not None
        plan = sampling_plan(self.settings, self.horizons, with_actions=with_actions)
        raw = draw(experience, plan, session)
        if raw is None:
            session.log({"n_pairs": 0.0}, self)
            return None
        auxiliary = self._auxiliary_loss(self.infonce)
        result = auxiliary(raw)
        session.counts.n_updates += 1
        numbers = self._reporter.numbers(raw, result, auxiliary, session)
        self._publish({**numbers, "coef": self.infonce_coef})
        return result.loss

    def weighted_gradients(self, result: TemporalInfoNCELoss) -> AuxiliaryGradients | None:
        """Return the gradients of `infonce_coef` times the loss; see `finite_gradients`."""
        if self.infonce is None:
            return None
        auxiliary = self._auxiliary_loss(self.infonce)
        return finite_gradients(auxiliary, self.infonce_coef * result.loss, self._session)

    def _auxiliary_loss(self, heads: TemporalInfoNCE) -> AuxiliaryLoss:
        policy = getattr(self._session.algorithm, "policy", None)
        return AuxiliaryLoss(
            encoder=self,
            heads=heads,
            target=self.target,
            horizons=self.horizons,
            rng=self._session.rng,
            normalize_images=bool(getattr(policy, "normalize_images", True)),
            action_space=self._action_space,
        )

    def _publish(self, numbers: Mapping[str, float]) -> None:
        self.last_infonce.update(numbers)
        self._session.log(numbers, self)

    def get_state(self) -> dict[str, Any]:
        """Return what the next update depends on beside the weights: random stream and counters."""
        averaged = [] if self.target is None else list(self.target.followed)
        state = self._session.get_state()
        return {**state, "averaged": averaged, "last_infonce": dict(self.last_infonce)}

    def set_state(self, state: Mapping[str, Any], *, games_go_on: bool = True) -> None:
        """Go on in `learn` where an extractor of the same weights had this state.

        With `games_go_on` the environments also go on; otherwise `learn` has reset them.
        """
        self._session.set_state(state, games_go_on=games_go_on)
        if self.target is not None:
            self.target.followed = list(state["averaged"])
        self.last_infonce.update(state["last_infonce"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy, also a shallow one, a session of its own: it is bound to nothing."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._session, self._attachment, self._reporter = copy.deepcopy(
            (self._session, self._attachment, self._reporter)
        )


if InfoNCEExtractor.__doc__:  # None under python -OO
    _head, _raises = InfoNCEExtractor.__doc__.split("\n\n    Raises:")
    InfoNCEExtractor.__doc__ = f"{_head}\n{arguments_in_words()}\n\n    Raises:{_raises}"


def _stream(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, _STREAM])
