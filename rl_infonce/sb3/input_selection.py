"""Which inputs of an encoder its loss has use for, by a test on pairs that hardly trained it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from rl_infonce.sb3.batch_sampling import ObservationBatch

FIRST_TEST = 40
"""Updates of the encoder before the first test, which have to teach it something."""
TEST_GROWTH = 1.25
"""Updates at a test over those at the last one: tests become rare as their answers settle."""
KEPT_SHARE = 0.5
"""What the evidence of earlier tests, which are of an earlier encoder, weighs at the next one."""
SIGNIFICANCE = 3.0
"""Standard errors above 0 at which an increase of the loss counts."""


@torch.no_grad()
def permuted_increases(
    losses_of: Callable[[ObservationBatch], Tensor],
    raw: ObservationBatch,
    rng: np.random.Generator,
) -> Tensor:
    """Return how much worse each pair is told from others when one input is another row's.

    It is the permutation importance of Breiman 2001, section 10, of each input to the loss: the
    input is shuffled over the batch, once for all contexts and once for all futures. Shuffling what
    is independent of all other inputs and of time, such as white noise, changes no distribution, so
    that the expected increase is 0 on pairs that trained nothing.

    Args:
        losses_of: The losses [M] of the first M pairs of a batch.
        raw: Vectors of B pairs, contexts [B, L, n] and futures [K, B, n].
        rng: Source of the permutations.

    Returns:
        Increases [n, M] in nats.
    """
    before = losses_of(raw)
    n_pairs, n_inputs = raw.n_anchors, raw.context.shape[-1]
    increases = []
    for index in range(n_inputs):
        context, futures = raw.context.copy(), raw.futures.copy()
        context[..., index] = context[rng.permutation(n_pairs), :, index]
        futures[..., index] = futures[:, rng.permutation(n_pairs), index]
        increases.append(losses_of(raw._replace(context=context, futures=futures)) - before)
    return torch.stack(increases)


class InputSelection(nn.Module):
    """The inputs that the policy receives, and the evidence for them, all of it in buffers.

    Args:
        n_inputs: Number n of dimensions of a vector; all are selected at first.

    Attributes:
        selected: [n] bool, whether the policy receives an input.
    """

    selected: Tensor

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        self.register_buffer("selected", torch.ones(n_inputs, dtype=torch.bool))
        self.register_buffer("tested_at", torch.zeros((), dtype=torch.int64))
        self.register_buffer("n_pairs", torch.zeros(()))
        self.register_buffer("sums", torch.zeros(n_inputs))
        self.register_buffer("square_sums", torch.zeros(n_inputs))

    @property
    def has_begun(self) -> bool:
        """Whether there was a test."""
        return bool(self.get_buffer("tested_at"))

    def is_due(self, n_updates: int) -> bool:
        """Return whether an encoder of so many updates is tested now.

        A test evaluates the loss once for each input, so that many inputs are tested more rarely.
        """
        tested_at = int(self.get_buffer("tested_at"))
        if not tested_at:
            return n_updates >= FIRST_TEST
        return n_updates >= max(TEST_GROWTH * tested_at, tested_at + len(self.selected) / 2)

    @torch.no_grad()
    def count(self, increases: Tensor, n_updates: int) -> None:
        """Select anew, by the increases [n, M] of a test of the encoder after `n_updates`.

        An input is selected whose mean increase is `SIGNIFICANCE` standard errors above 0, or that
        permutation left as it was, since what does not vary is no noise. Where no input passes, the
        loss says nothing of any of them, and all are selected. Pairs that are not finite are left
        out.
        """
        increases = increases[:, increases.isfinite().all(dim=0)]
        names = ("n_pairs", "sums", "square_sums")
        n_pairs, sums, squares = (self.get_buffer(name).mul_(KEPT_SHARE) for name in names)
        n_pairs += increases.shape[1]
        sums += increases.sum(dim=1)
        squares += increases.square().sum(dim=1)
        self.get_buffer("tested_at").fill_(n_updates)
        means = sums / n_pairs
        errors = ((squares / n_pairs - means.square()).clamp_min(0) / n_pairs).sqrt()
        passes = means > SIGNIFICANCE * errors
        self.selected.copy_(passes | (squares == 0) | ~passes.any())

    def forward(self, vectors: Tensor, means: Tensor) -> Tensor:
        """Return vectors [K, n] in which inputs that are not selected stand at their means [n]."""
        return torch.where(self.selected, vectors, means)
