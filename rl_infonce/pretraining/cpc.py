"""Contrastive predictive coding over long sequences."""

from __future__ import annotations

import torch
from torch import nn

from rl_infonce.nce import contrast
from rl_infonce.pretraining.base_objective import (
    Encoded,
    Encoder,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
    fresh,
    fresh_linear,
)

_LENGTH = 100
_OFFSETS = range(1, _LENGTH - 1, 4)  # 1, 5, ..., 97


class CPC(PretrainingObjective):
    """CPC (van den Oord et al. 2018, equation 4) as Anand et al. 2019 ran it on Atari.

    A two-layer GRU summarises 100 consecutive frames. From its state, one linear map per offset 1,
    5, ..., 97 picks the features of the frame that far ahead among those of all sequences of the
    batch that lie at least as far into theirs: 16 times 99 frames at offset 1, 16 times 3 at offset
    97, as in the published code. The losses of the 25 offsets are summed. Stacked frames leave out
    offsets at which both share pixels. The GRU is thrown away.

    Deviations from the published code: a batch has 16 sequences instead of 64, and every start is
    equally likely, where there every episode of at least 100 frames is.

    Starts are distinct, but sequences may overlap, as in the published code: the frame to pick then
    stands among the candidates twice, and once as a negative. With 80,000 frames, two of 16
    sequences overlap in a quarter of the batches, and share 1 % of all frames; with few frames, in
    every batch.
    """

    default_batch_size = 16
    frame_offsets = range(_LENGTH)

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(encoder, generator)
        n_features = encoder.features_dim
        self.offsets = [offset for offset in _OFFSETS if offset >= self.horizon]
        self.summary = fresh(
            lambda: nn.GRU(n_features, n_features, num_layers=2, batch_first=True), generator
        )
        self.predictors = nn.ModuleList(
            fresh_linear(n_features, n_features, generator) for _ in self.offsets
        )

    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the sum over offsets, in nats."""
        (features,) = encoded
        states, _ = self.summary(features)
        losses = []
        for offset, predictor in zip(self.offsets, self.predictors, strict=True):
            predictions = predictor(states[:, :-offset]).flatten(0, 1)  # [B * (L - offset), D]
            targets = features[:, offset:].flatten(0, 1)
            losses.append(contrast(predictions, targets, validate_args=False).mean())
        return PretrainingLoss(torch.stack(losses).sum(), features.new_full((), torch.nan))
