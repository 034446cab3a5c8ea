"""A reference that is told the labels; no upper bound on what others reach."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_infonce.pretraining.base_objective import (
    Encoded,
    Encoder,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
    fresh_linear,
)
from rl_infonce.probing.data import N_CLASSES


class Supervised(PretrainingObjective):
    """A linear classifier of every variable, trained with the encoder.

    Deviations from Anand et al. 2019, who train a copy of the encoder for each variable on the
    probes' training frames and score its own head: one encoder learns all variables on the frames
    of pretraining, and is probed afterwards like any other. So it is told the labels of states that
    the probe's test part may hold again. Theirs is not: duplicates are taken out of that part.
    """

    contrasts = False
    frame_offsets = (0,)

    def __init__(
        self, encoder: Encoder, generator: torch.Generator, variables: Sequence[str]
    ) -> None:
        super().__init__(encoder, generator)
        if not variables:
            raise ValueError(
                "Expected `variables` to learn, got none. Give labels with the frames."
            )
        self.variables = tuple(variables)
        n_outputs = len(self.variables) * N_CLASSES
        self.heads = fresh_linear(encoder.features_dim, n_outputs, generator)

    def encode(self, images: Tensor) -> Encoded:
        """Return features [B, D] of images [B, 1, C, H, W]."""
        return (self.encoder(images[:, 0]),)

    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the mean cross-entropy over variables, in nats."""
        (features,) = encoded
        scores = self.heads(features).float().unflatten(1, (len(self.variables), N_CLASSES))
        missing = sorted(set(self.variables) - set(batch.labels))
        if missing:
            raise ValueError(
                f"Expected frames with labels of {list(self.variables)}, got none of {missing}. "
                "Give them with dataclasses.replace(frames, labels=...)."
            )
        targets = torch.stack([batch.labels[name] for name in self.variables], dim=1)  # [B, V]
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        accuracy = (scores.argmax(-1) == targets).float().mean()
        return PretrainingLoss(loss, accuracy)
