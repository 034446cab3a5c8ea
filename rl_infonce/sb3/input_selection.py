"""Which inputs of an encoder its loss has use for, by a test on pairs that trained nothing yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_infonce.sb3.auxiliary_loss import AuxiliaryLoss
from rl_infonce.sb3.batch_sampling import ObservationBatch, SamplingPlan, gather_batch
from rl_infonce.sb3.experience import Experience

N_TESTED = 256
"""Pairs in the batch of a test."""
N_HELD_OUT = 128
"""Newest rows of a replay buffer, at most, that train nothing until they are older."""
FIRST_TEST = 40
"""Updates of the encoder before the first test, which have to teach it something."""
TEST_GROWTH = 1.25
"""Updates at a decision over those at the last one: tests become rare as answers settle."""
MIN_PAIRS = 64
"""Pairs of a decision, in so many of which permutation has to change an input that it is about."""
KEPT_SHARE = 0.8
"""What the evidence before a decision, which is of an earlier encoder, weighs at the next one."""
CHANCE = 0.001
"""Chance at which one input or more of noise alone would pass in a decision."""


class Increases(NamedTuple):
    """What shuffling an input does to pairs.

    Attributes:
        losses: [n, M] how much more each pair loses, in nats.
        has_changed: [n, M] bool, whether the pair has another value of the input then.
    """

    losses: Tensor
    has_changed: Tensor


@torch.no_grad()
def permuted_increases(
    losses_of: Callable[[ObservationBatch], Tensor],
    raw: ObservationBatch,
    n_tested: int,
    rng: np.random.Generator,
) -> Increases:
    """Return how much worse pairs are told from others when one input is another pair's.

    It is the permutation importance of Breiman 2001, section 10, of each input to the loss: the
    input is shuffled over the batch, once for all contexts and once for all futures. Shuffling what
    is independent of all other inputs and of time, such as white noise, changes no distribution, so
    that the expected increase is 0 on pairs that trained nothing.

    Args:
        losses_of: The losses [B] of a batch.
        raw: Vectors of B pairs, contexts [B, L, n] and futures [K, B, n].
        n_tested: How many pairs count, M <= B; they come first.
        rng: Source of the permutations.
    """
    before = losses_of(raw)[:n_tested]
    n_pairs, n_inputs = raw.n_anchors, raw.context.shape[-1]
    losses, has_changed = [], []
    for index in range(n_inputs):
        context, futures = raw.context.copy(), raw.futures.copy()
        context[..., index] = context[rng.permutation(n_pairs), :, index]
        futures[..., index] = futures[:, rng.permutation(n_pairs), index]
        losses.append(losses_of(raw._replace(context=context, futures=futures))[:n_tested] - before)
        changed = (context != raw.context)[..., index].any(axis=1)
        changed |= (futures != raw.futures)[..., index].any(axis=0)
        has_changed.append(torch.as_tensor(changed[:n_tested]))
    return Increases(torch.stack(losses), torch.stack(has_changed).to(before.device))


def n_trainable_steps(experience: Experience, horizon: int) -> int:
    """Return how many of the oldest steps of a replay buffer may train."""
    n_held_out = math.ceil(N_HELD_OUT / experience.n_envs) + horizon
    return experience.n_steps - min(n_held_out, experience.n_steps // 4)


def increases_of_new_pairs(
    auxiliary: AuxiliaryLoss, experience: Experience, plan: SamplingPlan, n_trainable: int
) -> Increases | None:
    """Return the increases of pairs that trained nothing, among older ones if there are any.

    None where they are too few for a test.
    """
    horizon, rng = max(plan.horizons), auxiliary.rng
    n_wanted = N_TESTED // 2 if n_trainable else N_TESTED
    new = experience.part(n_trainable, experience.n_steps)
    steps, envs = new.sample_anchors(horizon, n_wanted, rng)
    n_new, steps = len(steps), steps + n_trainable
    if n_new < (MIN_PAIRS if n_trainable else 2):
        return None
    if n_trainable:
        older = experience.part(0, n_trainable).sample_anchors(horizon, N_TESTED - n_new, rng)
        steps, envs = np.concatenate([steps, older[0]]), np.concatenate([envs, older[1]])
    raw = gather_batch(experience, plan, steps, envs, rng)
    return permuted_increases(auxiliary.losses, raw, n_new, rng)


class InputSelection(nn.Module):
    """The inputs that the policy receives, and the evidence for them, all of it in buffers.

    Args:
        n_inputs: Number n of dimensions of a vector; all are selected at first.

    Attributes:
        selected: [n] bool, whether the policy receives an input.
    """

    selected: Tensor
    decided_at: Tensor
    last_step: Tensor
    n_new: Tensor
    n_pairs: Tensor
    n_changed: Tensor
    sums: Tensor
    square_sums: Tensor

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        self.least_z = NormalDist().inv_cdf(1 - CHANCE / n_inputs)
        self.register_buffer("selected", torch.ones(n_inputs, dtype=torch.bool))
        self.register_buffer("decided_at", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last_step", torch.full((), -N_HELD_OUT))
        self.register_buffer("n_new", torch.zeros((), dtype=torch.int64))
        self.register_buffer("n_pairs", torch.zeros(()))
        for name in ("n_changed", "sums", "square_sums"):
            self.register_buffer(name, torch.zeros(n_inputs))

    @property
    def has_begun(self) -> bool:
        """Whether there was a test."""
        return bool(self.n_pairs)

    def has_seen(self, n_steps: int) -> bool:
        """Return whether the last test saw some of the newest pairs of a replay buffer.

        They would count more than once otherwise, in hosts that make many updates in each step.

        Args:
            n_steps: Steps of the host now, which SB3 may have counted from 0 again.
        """
        return abs(n_steps - int(self.last_step)) < N_HELD_OUT

    def is_due(self, n_updates: int) -> bool:
        """Return whether an encoder of so many updates is tested now.

        A test evaluates the loss once for each input, so that many inputs are tested more rarely.
        """
        decided_at = int(self.decided_at)
        if not decided_at:
            return n_updates >= FIRST_TEST
        return n_updates >= max(TEST_GROWTH * decided_at, decided_at + len(self.selected) / 2)

    @torch.no_grad()
    def count(self, increases: Increases, n_updates: int, n_steps: int) -> None:
        """Count a test, and decide if it makes enough pairs.

        An input is selected whose mean increase is so many standard errors above 0 that noise would
        be as seldom as `CHANCE` for any input, with Bonferroni's correction. One that permutation
        seldom changes, as it hardly varies, stays what it was. Where no input passes, the loss says
        nothing of any of them, and all are selected. Pairs whose loss is not finite are left out.

        Args:
            increases: What the test found.
            n_updates: Updates of the encoder.
            n_steps: Steps of its host.
        """
        self.last_step.fill_(n_steps)
        is_finite = increases.losses.isfinite().all(dim=0)
        losses, has_changed = (each[:, is_finite] for each in increases)
        if not losses.shape[1]:
            return
        if not self.n_new:
            for evidence in (self.n_pairs, self.n_changed, self.sums, self.square_sums):
                evidence *= KEPT_SHARE
        self.n_new += losses.shape[1]
        self.n_pairs += losses.shape[1]
        self.n_changed += has_changed.sum(dim=1)
        self.sums += losses.sum(dim=1)
        self.square_sums += losses.square().sum(dim=1)
        if self.n_new >= MIN_PAIRS:
            self._decide(n_updates)

    def _decide(self, n_updates: int) -> None:
        self.n_new.zero_()
        self.decided_at.fill_(n_updates)
        means = self.sums / self.n_pairs
        variances = (self.square_sums / self.n_pairs - means.square()).clamp_min(0)
        errors = (variances / (self.n_pairs - 1)).sqrt()
        is_known = self.n_changed >= MIN_PAIRS
        passes = is_known & (means > self.least_z * errors)
        if passes.any():
            self.selected.copy_(torch.where(is_known, passes, self.selected))
        else:
            self.selected.fill_(True)

    def forward(self, vectors: Tensor, means: Tensor) -> Tensor:
        """Return vectors [K, n] in which inputs that are not selected stand at their means [n]."""
        return with_means(vectors, self.selected, means)


def with_means(vectors: Tensor, selected: Tensor, means: Tensor) -> Tensor:
    """Return vectors [K, n] in which inputs that are not selected [n] stand at their means [n]."""
    return torch.where(selected, vectors, means)
