"""From an experience to the observations of one contrastive batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.copies import distinct_mask
from rl_infonce.sb3.experience import Experience
from rl_infonce.settings import AUTO_SHARE, InfoNCESettings
from rl_infonce.temporal import IntArray, negative_mask


class SamplingPlan(NamedTuple):
    """What to draw from an experience.

    Attributes:
        settings: Those of the loss.
        horizons: K gaps in steps, ascending, that the settings came to.
    """

    settings: InfoNCESettings
    horizons: tuple[int, ...]

    @property
    def minibatch_share(self) -> float:
        """Part of the loss's weight that pairs of RL's minibatch have."""
        return AUTO_SHARE if self.settings.pairs_from == "auto" else 1.0


class ObservationBatch(NamedTuple):
    """Raw observations of anchors and futures.

    Attributes:
        context: [B, L, *observation] the last L observations, the anchor's own last.
        context_used: [B, L] bool; False before the episode began.
        futures: [K, B, *observation]; row i holds anchor i's positive, or another's if shuffled.
        mask: [K, B, B] bool; True where candidate j takes part for anchor i.
        time_mask: [B, B] bool; the same with identical observations left in.
        actions: [B, largest horizon, *action] or None.
    """

    context: npt.NDArray[np.generic]
    context_used: npt.NDArray[np.bool_]
    futures: npt.NDArray[np.generic]
    mask: npt.NDArray[np.bool_]
    time_mask: npt.NDArray[np.bool_]
    actions: npt.NDArray[np.generic] | None

    @property
    def n_anchors(self) -> int:
        """B."""
        return len(self.context)

    @property
    def observed(self) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
        """Anchors [B, *observation] and futures [K, B, *observation]."""
        return self.context[:, -1], self.futures


def sample_batch(
    experience: Experience, plan: SamplingPlan, rng: np.random.Generator
) -> ObservationBatch | None:
    """Draw anchors with all their futures inside one episode, and gather their observations.

    Returns:
        The batch, of fewer than `n_pairs` anchors if fewer are legal; None if fewer than 2 are.
    """
    steps, envs = experience.sample_anchors(max(plan.horizons), plan.settings.n_pairs, rng)
    return None if len(steps) < 2 else gather_batch(experience, plan, steps, envs, rng)


def gather_batch(
    experience: Experience,
    plan: SamplingPlan,
    steps: IntArray,
    envs: IntArray,
    rng: np.random.Generator,
) -> ObservationBatch:
    """Gather the observations of anchors, whose futures lie inside their episodes.

    Args:
        experience: What they are taken from.
        plan: What belongs to an anchor; how many there are is not asked.
        steps: [B] steps by age.
        envs: [B] environments.
        rng: Source of the order in which futures are shuffled.
    """
    settings, episodes = plan.settings, experience.episodes(steps, envs)
    context_steps = steps[:, None] + np.arange(1 - settings.n_context_steps, 1)  # [B, L]
    context_envs = np.broadcast_to(envs[:, None], context_steps.shape)
    recorded = np.maximum(context_steps, 0)
    context_used = (context_steps >= 0) & (
        experience.episodes(recorded, context_envs) == episodes[:, None]
    )
    future_steps = steps + np.asarray(plan.horizons)[:, None]  # [K, B]
    futures = experience.observations(future_steps, np.broadcast_to(envs, future_steps.shape))
    may_serve = negative_mask(steps, envs, episodes, settings.min_gap)
    if settings.positives == "shuffled":
        # Negatives lie as far from the anchor as positives, or distance would tell them.
        order = another_one(len(steps), rng)
        futures, may_serve = futures[:, order], order != np.arange(len(order))[:, None]
    return ObservationBatch(
        context=experience.observations(recorded, context_envs),
        context_used=context_used,
        futures=futures,
        mask=np.stack([may_serve & distinct_mask(candidates) for candidates in futures]),
        time_mask=may_serve,
        actions=actions_between(experience, plan, steps, envs),
    )


def another_one(n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return for each of n another one, none twice: one cycle through all."""
    cycle, order = rng.permutation(n), np.empty(n, dtype=np.int64)
    order[cycle] = np.roll(cycle, 1)
    return order


def actions_between(
    experience: Experience,
    plan: SamplingPlan,
    steps: npt.NDArray[np.int64],
    envs: npt.NDArray[np.int64],
) -> npt.NDArray[np.generic] | None:
    """Return the actions [B, largest horizon, *action] from anchors on, if they are wanted."""
    if not plan.settings.action_conditioning or max(plan.horizons) == 0:
        return None
    action_steps = steps[:, None] + np.arange(max(plan.horizons))  # [B, largest horizon]
    return experience.actions(action_steps, np.broadcast_to(envs[:, None], action_steps.shape))
