"""HostedExtractor: a features extractor that knows, weakly, which algorithm trains it."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from torch import Tensor, nn
from typing_extensions import Self

from rl_infonce.checks import check_number
from rl_infonce.device import hardware_name, is_slow_at_bf16
from rl_infonce.sb3.binding import (
    check_host,
    has_lost_statistics,
    is_collecting,
    is_learning,
    is_of_target_network,
    is_part_of,
    is_updating,
    training_algorithm,
)
from rl_infonce.sb3.encoders import Encoder
from rl_infonce.sb3.experience import Experience
from rl_infonce.sb3.own_updates import OwnUpdates, updates_due
from rl_infonce.sb3.session import Session, Steering, is_traced
from rl_infonce.sb3.spaces import check_observed_alike
from rl_infonce.sb3.vector_encoder import VectorEncoder
from rl_infonce.settings import InfoNCESettings

_STREAM = 0x1F0CE
"""Keeps the pairs' random stream apart from others grown from the same seed."""

_LOST_STATISTICS = (
    "This agent was trained before, and the VecNormalize around its environment has counted none "
    "of the observations from then: the agent now reads them on another scale. model.save() leaves "
    "these statistics out. Keep them with env.save(path), and give them to the new environment "
    "with VecNormalize.load(path, venv) before learn(). The model.zip of `rl-infonce train` holds "
    "them: see rl_infonce.agents.saved_statistics.load_statistics."
)

_LOST_UPDATES = (
    "RL has trained this agent before, and the InfoNCE loss has trained nothing of it. Updates of "
    "the loss come with the next rollout of learn(), and save() leaves out what is due after the "
    "last one. Pass InfoNCECallback() to learn(), or call rl_infonce.sb3.make_updates_due(model) "
    "before you save. In an algorithm of your own they need a `collect_rollouts` that calls "
    "policy.set_training_mode(False), or make_updates_due(model) after each `train`."
)

_UNCOUNTED = (
    "Features were asked for with gradients outside of learn(), as in behaviour cloning, before "
    "the encoder has counted any vectors. learn() will begin to normalise them, and all features "
    "will change under what a policy has learned here. If one does learn here, call "
    "rl_infonce.agents.count_vectors(model, vectors) with these observations first. With "
    "infonce_coef above 0, the loss still changes the features later."
)


class HostedExtractor(NatureCNN):
    """The side of an extractor that its algorithm sees: binding, phases, weight and state.

    It is a subclass of NatureCNN, because SB3 treats its subclasses as encoders of images.
    """

    encoder: Encoder
    """What is trained; its parts are parts of the extractor also, under the same names."""
    settings: InfoNCESettings
    horizons: tuple[int, ...]
    auto_bind: bool
    observation_key: str | None
    last_infonce: dict[str, float]
    own_updates: OwnUpdates | None

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def begin_session(self, seed: int | None) -> None:
        """Begin with the random stream of a seed, or with one of chance until `bind` knows one."""
        chance = secrets.randbits(128)
        self._chance_seed = chance if seed is None else None
        stream = stream_of(chance if seed is None else seed)
        self._session = Session(stream, self.observation_key)

    def bind(self, model: BaseAlgorithm) -> None:
        """Draw pairs from this algorithm's buffer from now on; it is held weakly.

        The binding ends when training starts and the algorithm's policy has no such extractor, or,
        with `auto_bind`, when another algorithm trains a policy that has it. The first algorithm's
        seed, where none was known before, is that of pairs and new heads.

        Raises:
            TypeError: If `model` is no algorithm of SB3.
            ValueError: If the algorithm follows no gradient, a horizon does not fit into its
                rollouts, its emulator skips frames twice, or it observes another shape than is
                encoded.
        """
        check_host(model, self.horizons if self.infonce_coef > 0 else ())
        if self.infonce_coef > 0:
            check_observed_alike(model, self._observation_space, self.observation_key)
        # Of an algorithm that is known, updates may be due since its last `learn`.
        if model is not self._session.algorithm:
            self._session.counts.n_host_updates = int(model._n_updates)
        self._session.bind(model)
        if self.settings.precision == "bf16" and is_slow_at_bf16(model.device):
            self._session.warn_once(
                "slow bf16",
                "precision='bf16' is several times slower than 'fp32' on "
                f"{hardware_name(model.device)}, which does not multiply bfloat16 in hardware. "
                "precision='auto' takes what is faster.",
            )
        chance, self._chance_seed = self._chance_seed, None
        if chance is not None and model.seed is not None:
            self._session.rng = stream_of(model.seed)
            self.reseed_heads(stream_of(chance))

    def reseed_heads(self, former: np.random.Generator) -> None:
        """Draw heads anew from the session's stream if they are as `former` made them."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode.

        Training begins with a look at the binding, and rollouts with an isolated encoder's updates.
        The parts of an isolated encoder stay in evaluation mode but for these updates: RL reads the
        same features as the rollout did.
        """
        mode_of_parts = mode and not self.is_isolated
        # SB3 asks in each step, and a walk through all parts of the parts takes its time.
        if any(part.training is not mode_of_parts for part in self.children()):
            super().train(mode_of_parts)
        self.training = mode
        if mode:
            self._check_binding(self._session)
        else:
            self._make_updates(only_in_rollouts=True)
        return self

    @property
    def is_isolated(self) -> bool:
        """Whether RL's gradient stays out of the encoder: the loss trains it, or has done so."""
        own = self.own_updates
        return own is not None and (max(self._own_coef, self.infonce_coef) > 0 or own.have_begun)

    def make_updates_due(self) -> None:
        """Make now the updates that would otherwise come with the next `learn`."""
        self._make_updates(only_in_rollouts=False)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _make_updates(self, *, only_in_rollouts: bool) -> None:
        """Make the updates that are due, and give their result to the policy's other encoders."""
        algorithm, counts = self._session.algorithm, self._session.counts
        if algorithm is None or getattr(algorithm, "policy", None) is None:
            return
        if not self.is_isolated:
            counts.n_host_updates = int(algorithm._n_updates)  # RL trained the encoder in them
            return
        n_due, n_host_updates = updates_due(algorithm, counts.n_host_updates, self.settings)
        if n_due == 0 and self._session.shares_encoder:
            return
        if only_in_rollouts and not self._is_collecting(algorithm):
            return
        self._session.shares_encoder = True
        counts.n_host_updates = n_host_updates
        found = self._session.once_per_learn("alike", lambda host: alike(self, host.policy))
        leader, *followers = found
        experience = self.experience() if leader is self else None
        if experience is not None:
            # A rollout of the user's own may run without gradients.
            with torch.inference_mode(False), torch.enable_grad():
                self.updates_alone(experience, algorithm, n_due, followers)

    def updates_alone(
        self, experience: Experience, algorithm: BaseAlgorithm, n_due: int, followers: list[Any]
    ) -> None:
        """Make updates of an isolated encoder, and give their result to the followers."""
        raise NotImplementedError

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check_binding(self, session: Session) -> None:
        if session.algorithm is not None and not session.once_per_learn(
            "is part", partial(is_part_of, self)
        ):
            session.bind(None)
        trains = training_algorithm() if self.auto_bind else None
        # Another one may have been given the policy while the former algorithm lives.
        if trains is not None and trains is not session.algorithm and is_part_of(self, trains):
            self.bind(trains)
        if session.algorithm is None:
            return
        if session.once_per_learn("lost", has_lost_statistics):
            session.warn_once("lost statistics", _LOST_STATISTICS)
        is_lost = session.once_per_learn("lost updates", self._has_lost_updates)
        # Without an occasion yet, in an algorithm's first `learn` also, after its first `train`.
        if is_lost or (not session.shares_encoder and self._has_lost_updates(session.algorithm)):
            session.warn_once("lost updates", _LOST_UPDATES)

    def _has_lost_updates(self, algorithm: BaseAlgorithm) -> bool:
        """Return whether RL has made updates, as `train` begins, and the loss that is on none."""
        own = self.own_updates
        # A weight of the callback's alone is new, and the callback makes what is due.
        is_untrained = own is not None and self._own_coef > 0 and not own.have_begun
        has_reason = self._session.has_warned_of("no pairs", "unreadable buffer")
        return is_untrained and bool(algorithm._n_updates) and not has_reason

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _is_updating(self) -> bool:
        """Return whether the bound algorithm asks: SB3 leaves policies in training mode."""
        algorithm = self._session.algorithm
        return algorithm is None or not self.auto_bind or is_updating(algorithm)

    def _is_collecting(self, algorithm: BaseAlgorithm) -> bool:
        """Return whether a rollout begins, and not a look at the policy after training."""
        if self.auto_bind:
            return is_collecting(algorithm)
        return algorithm.num_timesteps < algorithm._total_timesteps

    def _warn_if_uncounted(self, observations: Tensor) -> None:
        """Warn once if a policy seems to learn before its encoder knows the scale of vectors."""
        # A gradient of the observations is asked for by saliency.
        if is_traced() or not torch.is_grad_enabled() or observations.requires_grad:
            return
        algorithm = self._session.algorithm
        if algorithm is None or algorithm._n_updates or not isinstance(self.encoder, VectorEncoder):
            return
        if not self.encoder.has_statistics and self.auto_bind and not is_learning(algorithm):
            self._session.warn_once("uncounted", _UNCOUNTED)

    @property
    def infonce_coef(self) -> float:
        """Weight of the loss: the schedule's while `learn()` runs with one, else its own."""
        scheduled = self._session.steering.infonce_coef
        return self._own_coef if scheduled is None else scheduled

    @infonce_coef.setter
    def infonce_coef(self, coef: float) -> None:
        check_number("infonce_coef", coef, at_least=0)
        self._own_coef = coef

    def steer(
        self, *, decoupled: bool = False, infonce_coef: float | None = None, share: float = 1.0
    ) -> None:
        """Change the loss until `learn()` ends; without a weight the extractor's own holds.

        `share` is the weight over the schedule's largest: what an isolated encoder has of its
        learning rate.
        """
        check_number("infonce_coef", infonce_coef or 0.0, at_least=0)
        self._session.steer(Steering(decoupled, infonce_coef, share))

    def experience(self) -> Experience | None:
        """Return what the bound algorithm has recorded; None, after one warning, if unreadable."""
        return self._session.experience(isolated=self.is_isolated)

    def _publish(self, numbers: Mapping[str, float]) -> None:
        self.last_infonce.update(numbers)
        self._session.log(numbers, self)

    def get_state(self) -> dict[str, Any]:
        """Return what the next update depends on beside the weights: random stream and counters."""
        return {**self._session.get_state(), "last_infonce": dict(self.last_infonce)}

    def set_state(self, state: Mapping[str, Any], *, games_go_on: bool = True) -> None:
        """Go on in `learn` where an extractor of the same weights had this state.

        With `games_go_on` the environments also go on; otherwise `learn` has reset them.
        """
        self._session.set_state(state, games_go_on=games_go_on)
        self.last_infonce.update(state["last_infonce"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy, also a shallow one, a session of its own: it is bound to nothing."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._session = copy.deepcopy(self._session)


def alike(extractor: HostedExtractor, policy: nn.Module) -> list[HostedExtractor]:
    """Return a policy's extractors of the same observation, those of target networks last.

    Those of other settings or sizes, which a policy of the user's own may have, are left out.
    """
    found = {
        id(module): (is_of_target_network(name), module)
        for name, module in policy.named_modules()
        if isinstance(module, type(extractor)) and _form(module) == _form(extractor)
    }
    return [module for _, module in sorted(found.values(), key=lambda each: each[0])]


def _form(extractor: HostedExtractor) -> tuple[Any, ...]:
    """Return what two extractors have alike of which one can take the other's numbers."""
    shapes = {name: each.shape for name, each in extractor.state_dict().items()}
    return extractor.observation_key, extractor.settings, shapes


def stream_of(seed: int) -> np.random.Generator:
    """Return the random stream of pairs, augmentations and heads."""
    return np.random.default_rng([seed, _STREAM])
