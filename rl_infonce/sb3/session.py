"""What an extractor remembers while an algorithm trains it; never copied with it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn

from rl_infonce.checks import warn_user
from rl_infonce.sb3.attach import Attachment
from rl_infonce.sb3.binding import (
    current_samples,
    judges_its_actor,
    place_of,
    unfit_for_attaching,
)
from rl_infonce.sb3.buffers import ExperienceReader, UnreadableBufferError
from rl_infonce.sb3.experience import Experience
from rl_infonce.sb3.minibatch import RolloutRows
from rl_infonce.sb3.replay_rows import ReplayRows
from rl_infonce.sb3.update_counts import UpdateCounts

MAX_NAMED = 10
"""Dimensions that a warning names, at most."""

LASTING = 10
"""Reports in a row, one every `DETAILS_FREQ` updates, after which something is not chance."""

Found = TypeVar("Found")
_WITHOUT_LOSS = "InfoNCEExtractor trains without its loss"
_UNBOUND = (
    "it does not know which algorithm owns it. Call extractor.bind(model), or pass "
    "InfoNCECallback() to model.learn()."
)
_NOTHING_TRAINS = (
    " RL does not train this isolated encoder either. Pass infonce_coef=0 in "
    "features_extractor_kwargs: then RL trains it."
)
_ON_SCREEN = ("loss", "accuracy", "mi_lower_bound", "selected_inputs")


class Steering(NamedTuple):
    """What a callback changes for one `learn()`.

    Attributes:
        decoupled: Whether the loss leaves the host's backward alone.
        infonce_coef: Weight of the loss; None keeps the extractor's own.
        share: That weight over the schedule's largest, which an isolated encoder's learning rate
            has, as Adam cancels the weight.
    """

    decoupled: bool = False
    infonce_coef: float | None = None
    share: float = 1.0


class Session:
    """The weak link to the algorithm, the stream that pairs are drawn from, and what was said.

    Args:
        rng: Source of pairs, augmentations, weights of new heads, and tests of inputs.
        observation_key: Entry of the observations, where they are dictionaries.
    """

    def __init__(self, rng: np.random.Generator, observation_key: str | None = None) -> None:
        self.rng = rng
        self.counts = UpdateCounts()
        self.attachment = Attachment()
        # trunk of random weights, made when asked for; (None,) where it cannot be copied
        self.untrained: tuple[nn.Module | None] | None = None
        self._algorithm: weakref.ref[BaseAlgorithm] | None = None
        self._steering = Steering()
        self._steered_learn: float | None = None
        self._samples: weakref.ref[Tensor] | None = None
        self._begin(observation_key)

    def _begin(self, observation_key: str | None) -> None:
        """Know nothing of an algorithm's buffer, and have said nothing of it."""
        self.reader = ExperienceReader(observation_key)
        self.rollout_rows, self.replay_rows = RolloutRows(), ReplayRows(observation_key)
        self._warned: set[str] = set()
        self._n_in_a_row: dict[str, int] = {}
        self._remembered: dict[str, Any] = {}
        self._remembered_in: tuple[float, int] | None = None
        self.shares_encoder = False  # whether the policy's others have had an isolated one's

    def __reduce__(self) -> tuple[type[Session], tuple[np.random.Generator, str | None]]:
        """Copy the stream alone: the weak reference must not travel."""
        return Session, (self.rng, self.reader.observation_key)

    @property
    def algorithm(self) -> BaseAlgorithm | None:
        """The bound algorithm, None if unbound or gone."""
        return None if self._algorithm is None else self._algorithm()

    def bind(self, algorithm: BaseAlgorithm | None) -> None:
        """Point at another algorithm, or at none, and forget the previous one's buffer."""
        if algorithm is not self.algorithm:
            self._begin(self.reader.observation_key)
        self._algorithm = None if algorithm is None else weakref.ref(algorithm)

    def once_per_learn(self, name: str, look_up: Callable[[BaseAlgorithm], Found]) -> Found:
        """Return what a search of the algorithm's policy finds, made once in each `learn()`."""
        algorithm = self.algorithm
        assert algorithm is not None  # noqa: S101 (callers have one)
        now = algorithm.start_time, id(getattr(algorithm, "policy", None))
        if now != self._remembered_in or not algorithm.start_time:  # outside of `learn`, anew
            self._remembered, self._remembered_in = {}, now
        if name not in self._remembered:
            self._remembered[name] = look_up(algorithm)
        found: Found = self._remembered[name]
        return found

    @property
    def steering(self) -> Steering:
        """What a callback changed for the current `learn()`; a later one starts afresh."""
        algorithm = self.algorithm
        current = algorithm is not None and self._steered_learn == algorithm.start_time
        return self._steering if current else Steering()

    def steer(self, steering: Steering) -> None:
        """Change the loss for the current `learn()`.

        Tied to that one call, so that an interrupted `learn()` cannot change the next one.
        """
        algorithm = self.algorithm
        self._steering = steering
        self._steered_learn = None if algorithm is None else algorithm.start_time

    def has_warned_of(self, *reasons: str) -> bool:
        """Return whether an encoder of this algorithm has warned for one of some reasons."""
        sessions = [self, *_sessions(self.algorithm)]
        return any(not session._warned.isdisjoint(reasons) for session in sessions)

    def warn_once(self, reason: str, message: str) -> None:
        """Warn, but only the first time for this reason and algorithm, however many encoders."""
        if self.has_warned_of(reason):
            return
        self._warned.add(reason)
        warn_user(message)

    def warn_if_it_lasts(self, reason: str, message: str, *, happens: bool) -> None:
        """Warn once if something happens in `LASTING` calls for this reason without a break."""
        self._n_in_a_row[reason] = self._n_in_a_row.get(reason, 0) + 1 if happens else 0
        if self._n_in_a_row[reason] == LASTING:
            self.warn_once(reason, message)

    def may_attach(self) -> bool:
        """Return whether the loss may ride on the host's backward, or say once why not."""
        if self.steering.decoupled or self.warn_if_unbound():
            return False
        assert self.algorithm is not None  # noqa: S101 (bound)
        reason = unfit_for_attaching(self.algorithm)
        if reason is not None:
            self.warn_once("unfit", f"The InfoNCE loss is off: {reason}.")
        return reason is None

    def looks_again(self) -> bool:
        """Return whether `train` shows the samples that the last call of this saw, and note them.

        It is asked of algorithms alone whose critic judges the actor on the samples of its own
        update, after that, in a backward whose gradient on the critic is thrown away.
        """
        algorithm = self.algorithm
        if algorithm is None or not judges_its_actor(algorithm):
            return False
        samples = current_samples(algorithm)
        if not samples:
            return False
        former, self._samples = self._samples, weakref.ref(samples[0].actions)
        return former is not None and former() is samples[0].actions

    def warn_if_unbound(self, trains: bool = True, what: str = _WITHOUT_LOSS) -> bool:
        """Return whether no algorithm is known, and warn once if one trains, of what follows."""
        if self.algorithm is None and trains:
            self.warn_once("unbound", f"{what}: {_UNBOUND}")
        return self.algorithm is None

    def warn_unless_finite(self, observations: Tensor) -> None:
        """Warn once of vectors [K, n] with NaN or infinity, when they are acted on or valued.

        Passes with a gradient see the same vectors again, and are not looked at, nor are images.
        """
        if is_traced() or torch.is_grad_enabled() or observations.dim() != 2:
            return
        if math.isfinite(float(observations.sum())):  # a look at each number takes longer
            return
        others = ~observations.isfinite()
        if others.any():
            key = self.reader.observation_key
            entry = "" if key is None else f" {key!r}"
            places = torch.where(others.any(dim=0))[0].tolist()
            more = f" and {len(places) - MAX_NAMED} more" * (len(places) > MAX_NAMED)
            self.warn_once(
                f"not finite{entry}",
                f"Expected finite observations{entry}, got NaN or infinity in "
                f"{int(others.any(dim=1).sum())} of {len(observations)} observations, in "
                f"dimensions {places[:MAX_NAMED]}{more}. Find the step with "
                "stable_baselines3.common.vec_env.VecCheckNan, and mend the environment, or clip "
                "what it observes in a wrapper.",
            )

    def experience(self, *, isolated: bool = False) -> Experience | None:
        """Return what the bound algorithm has recorded, or None after one warning."""
        algorithm = self.algorithm
        if algorithm is None:
            return None
        try:
            return self.reader.read(algorithm)
        except UnreadableBufferError as error:
            also = _NOTHING_TRAINS if isolated else ""
            self.warn_once("unreadable buffer", f"The InfoNCE loss is off: {error}{also}")
            return None

    def log(self, numbers: Mapping[str, float], extractor: nn.Module) -> None:
        """Add numbers to the algorithm's logger under infonce/, averaged until it is dumped.

        The terminal shows the loss, the accuracies, the bound and how many inputs are selected,
        other outputs everything.

        Args:
            numbers: Name to number.
            extractor: Whose numbers they are; where a policy has several, they also go under
                infonce/<place>/.
        """
        logger = getattr(self.algorithm, "_logger", None)
        if logger is None:
            return
        place = self.once_per_learn("place", lambda host: place_of(extractor, host.policy))
        for name, number in numbers.items():
            exclude = None if name.startswith(_ON_SCREEN) else ("stdout",)
            logger.record_mean(f"infonce/{name}", number, exclude=exclude)
            if place:
                logger.record_mean(f"infonce/{place}/{name}", number, exclude=("stdout",))

    def get_state(self) -> dict[str, Any]:
        """Return what the next update depends on beside the weights."""
        algorithm = self.algorithm
        return {
            "n_steps_before": 0 if algorithm is None else self.reader.n_steps_before(algorithm),
            "rng": self.rng.bit_generator.state,
            "counters": asdict(self.counts),
        }

    def set_state(self, state: Mapping[str, Any], *, games_go_on: bool) -> None:
        """Go on where `get_state` was called on a session of an equal algorithm."""
        if self.algorithm is not None and games_go_on:
            self.reader.resume(self.algorithm, state["n_steps_before"])
        self.rng.bit_generator.state = state["rng"]
        self.counts = UpdateCounts(**state["counters"])


def is_traced() -> bool:
    """Return whether torch makes a program of this pass."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def _sessions(algorithm: BaseAlgorithm | None) -> Iterator[Session]:
    """Yield the sessions of all extractors of an algorithm; its policy is missing at first."""
    policy = getattr(algorithm, "policy", None)
    for module in () if policy is None else policy.modules():
        session = vars(module).get("_session")
        if isinstance(session, Session):
            yield session
