"""RL's own minibatch as anchors and candidates, so that the loss encodes little or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor

from rl_infonce.copies import first_copies
from rl_infonce.sb3.batch_sampling import SamplingPlan, actions_between, another_one
from rl_infonce.sb3.episode_index import Array
from rl_infonce.sb3.experience import Experience
from rl_infonce.settings import InfoNCESettings
from rl_infonce.temporal import BoolArray, IntArray, Steps, far_mask

AMBIGUOUS, ABSENT = -1, -2
"""Places of rows that are not found."""

OF_ROW = ("old_values", "old_log_prob", "advantages", "returns")
"""What SB3 hands out of a rollout beside observations and actions, a number for each row."""

ARRAYS = ("values", "log_probs", "advantages", "returns")
"""Where a rollout buffer keeps what it hands out under the names of `OF_ROW`."""

LOOKS, WHOLE = 16, 1
"""Numbers of each observation, at least, and whole observations, by which a minibatch is known."""


def shows(observations: Tensor, sampled: Tensor) -> bool:
    """Return whether preprocessed observations [K, ...] are those that were sampled.

    Args:
        observations: What a network encodes, as it is or divided by 255.
        sampled: What SB3 handed out.
    """
    if len(observations) != len(sampled) or observations.shape[1:] != sampled.shape[1:]:
        return False
    every = max(observations[0].numel() // LOOKS, 1)
    while math.gcd(every, observations.shape[-1]) > 1:  # or some columns are never looked at
        every -= 1
    encoded, raw = observations.flatten(1), sampled.flatten(1)
    parts = [(each[:WHOLE], each[:, ::every]) for each in (encoded, raw)]
    return any(
        all(torch.equal(seen, part.float() / scale) for seen, part in zip(*parts, strict=True))
        for scale in (255, 1)
    )


class RolloutRows:
    """Finds rows of a rollout by the numbers that SB3 hands out beside their observations.

    SB3 draws the rows of a minibatch and keeps their places to itself. The value, the log
    probability, the advantage and the return of a row together tell it from the others, unless
    another row has the same four. What is needed of a rollout is looked up once.
    """

    def __init__(self) -> None:
        self._rollout: tuple[Any, ...] | None = None
        self._places: dict[bytes, int] = {}
        self._labels: IntArray | None = None

    def find(self, algorithm: BaseAlgorithm, minibatch: Any) -> IntArray:
        """Return the place step * n_envs + env of each row [K] of a minibatch.

        It is `AMBIGUOUS` where several rows of the rollout have its numbers, and `ABSENT` where
        none has.
        """
        buffer: Any = algorithm.rollout_buffer  # type: ignore[attr-defined]
        returns = getattr(buffer, "returns", None)  # a loop of the user's own may count no steps
        content = hash(returns.tobytes()) if isinstance(returns, np.ndarray) else None
        rollout = id(buffer), algorithm.start_time, algorithm.num_timesteps, content
        if rollout != self._rollout:
            self._rollout, self._labels = rollout, None
            self._places = _places(buffer)
        numbers = [getattr(minibatch, name).detach().cpu().numpy().ravel() for name in OF_ROW]
        if len({len(each) for each in numbers}) > 1:  # of a buffer that is not SB3's
            return np.full(len(minibatch.actions), ABSENT, dtype=np.int64)
        found = [self._places.get(key, ABSENT) for key in _keys(*numbers)]
        return np.array(found, dtype=np.int64)

    def labels(self, experience: Experience) -> IntArray:
        """Return for each place of a rollout the first one with an observation of equal bytes."""
        if self._labels is None:
            self._labels = labels_of(experience, np.arange(experience.n_steps * experience.n_envs))
        return self._labels


def labels_of(experience: Experience, places: IntArray) -> IntArray:
    """Label some places [M] by the first of them whose observation holds the same bytes."""

    def observations(rows: slice | IntArray) -> Array:
        return experience.observations(*np.divmod(places[rows], experience.n_envs))

    return first_copies(observations, len(places))


def _places(buffer: Any) -> dict[bytes, int]:
    """Return the place of each row that no other one equals, by its numbers.

    There is none in a buffer that does not hold these numbers as SB3's do.
    """
    shape = buffer.buffer_size, buffer.n_envs
    arrays: list[Any] = [getattr(buffer, name, None) for name in ARRAYS]
    if not all(isinstance(each, np.ndarray) and each.size == math.prod(shape) for each in arrays):
        return {}

    def by_place(array: Array) -> Array:
        # `get` flattens environment by environment.
        rows = array if array.shape == shape else array.reshape(shape[::-1]).T
        return rows.ravel()

    places: dict[bytes, int] = {}
    for place, key in enumerate(_keys(*map(by_place, arrays))):
        places[key] = AMBIGUOUS if key in places else place
    return places


def _keys(*numbers: Array) -> list[bytes]:
    rows = np.stack(numbers, axis=-1).astype(np.float32, copy=False)
    return [row.tobytes() for row in rows]


class MinibatchPairs(NamedTuple):
    """Which rows of a minibatch are contrasted.

    Candidates are the futures of the anchors, then others; the positive of anchor i is candidate i.

    Attributes:
        anchors: [B] rows.
        futures: [F] rows that are futures of the first F anchors.
        missing: [B - F, *observation] futures of the other anchors, which are not in the minibatch.
        order: [B] which anchor's future is candidate i: i, or another one if shuffled.
        others: [M - B] rows that are futures of steps outside, and candidates only.
        mask: [B, M] True where candidate j takes part for anchor i.
        time_mask: [B, M] the same with identical observations left in.
        actions: [B, horizon, *action] or None.
        experience: What the algorithm has recorded.
        where: Steps of the B anchors in it.
        future_places: [M] places of the candidates in it, step * n_envs + env.
    """

    anchors: IntArray
    futures: IntArray
    missing: Array
    order: IntArray
    others: IntArray
    mask: BoolArray
    time_mask: BoolArray
    actions: Array | None
    experience: Experience
    where: Steps
    future_places: IntArray

    @property
    def observed(self) -> tuple[Array, Array]:
        """Anchors [B, *observation] and candidates [1, M, *observation]."""
        steps, envs = np.divmod(self.future_places, self.experience.n_envs)
        anchors = self.experience.observations(self.where.steps, self.where.envs)
        return anchors, self.experience.observations(steps, envs)[None]


def pairs_of_minibatch(
    places: IntArray,
    experience: Experience,
    labels: Callable[[IntArray], IntArray],
    plan: SamplingPlan,
    rng: np.random.Generator,
) -> MinibatchPairs | None:
    """Return every pair of a minibatch, and more of its anchors where these are few.

    Candidates are those rows that lie `horizon` steps after an observation of their episode, as
    all do that are drawn from the buffer. An anchor is no candidate of its own.

    Args:
        places: [K] places of the rows in the experience, step * n_envs + env, none twice;
            negative where not found.
        experience: What the algorithm has recorded.
        labels: From some places to labels, equal where observations are.
        plan: What belongs to an anchor; of one horizon. Where there are fewer than `n_pairs` pairs,
            so many anchors are drawn from the rest of the minibatch as are missing.
        rng: Source of these anchors and of the order in which futures are shuffled.

    Returns:
        The pairs; None if there are fewer than two.
    """
    settings, (horizon,) = plan.settings, plan.horizons
    rows = np.flatnonzero(places >= 0)
    steps, envs = np.divmod(places[rows], experience.n_envs)
    where = Steps(steps, envs, experience.episodes(steps, envs))
    has_future, futures, is_future = experience.futures_among(steps, envs, horizon)
    paired = np.flatnonzero(futures >= 0)
    lonely = _some(np.flatnonzero(has_future & (futures < 0)), settings.n_pairs - len(paired), rng)
    if len(lonely) == 1:  # a batch of one, which no batch norm can train on
        lonely = lonely[:0]
    chosen = np.concatenate([paired, lonely])
    if len(chosen) < 2:
        return None
    others = np.setdiff1d(np.flatnonzero(is_future), futures[paired])
    is_shuffled = settings.positives == "shuffled"
    order = another_one(len(chosen), rng) if is_shuffled else np.arange(len(chosen))
    anchors, missing = where.at(chosen), where.at(lonely)
    origins = _joined(anchors.at(order), _later(where.at(others), -horizon))
    candidates = _later(origins, horizon)
    time_mask = _may_serve(anchors, origins, candidates, settings)
    future_places = candidates.steps * experience.n_envs + candidates.envs
    return MinibatchPairs(
        anchors=rows[chosen],
        futures=rows[futures[paired]],
        missing=experience.observations(missing.steps + horizon, missing.envs),
        order=order,
        others=rows[others],
        mask=time_mask & _distinct(labels(future_places), len(chosen)),
        time_mask=time_mask,
        actions=actions_between(experience, plan, anchors.steps, anchors.envs),
        experience=experience,
        where=anchors,
        future_places=future_places,
    )


def _some(candidates: IntArray, n: int, rng: np.random.Generator) -> IntArray:
    """Draw n of some numbers, or all if there are fewer; nothing is drawn for none."""
    n = min(n, len(candidates))
    return rng.choice(candidates, n, replace=False) if n > 0 else candidates[:0]


def _later(where: Steps, n_steps: int) -> Steps:
    return where._replace(steps=where.steps + n_steps)


def _joined(first: Steps, second: Steps) -> Steps:
    return Steps(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def _may_serve(
    anchors: Steps, origins: Steps, candidates: Steps, settings: InfoNCESettings
) -> BoolArray:
    """Return which candidates may serve which anchors, before anyone looked at observations.

    Args:
        anchors: B anchors.
        origins: M steps, of which the candidates are the futures.
        candidates: M candidates.
        settings: If positives are shuffled, an anchor's own future alone may not; else `min_gap`
            holds.
    """
    mask = far_mask(anchors, origins, 1 if settings.positives == "shuffled" else settings.min_gap)
    mask &= far_mask(anchors, candidates, 1)
    np.fill_diagonal(mask, True)
    return mask


def _distinct(labels: IntArray, n_anchors: int) -> BoolArray:
    """Return which of M candidates differ from the positive of each anchor, or are it: [B, M]."""
    mask: BoolArray = labels[:n_anchors, None] != labels
    np.fill_diagonal(mask, True)
    return mask
