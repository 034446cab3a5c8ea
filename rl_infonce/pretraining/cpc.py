"""Contrastive predictive coding over long sequences."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rl_infonce.nce import contrast
from rl_infonce.pretraining.base_objective import (
    Encoded,
    Encoder,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
    draw_default_weights_,
    draw_rows,
    fresh_linear,
)
from rl_infonce.pretraining.episode_frames import EpisodeFrames, IntArray

_LENGTH = 100
_OFFSETS = range(1, _LENGTH - 1, 4)  # 1, 5, ..., 97


class CPC(PretrainingObjective):
    """CPC (van den Oord et al. 2018, equation 4) as Anand et al. 2019 ran it on Atari.

    A two-layer GRU summarises 100 consecutive frames; from its state, one linear map per offset 1,
    5, ..., 97 picks the features of the frame that far ahead among those of all sequences of
    the batch that lie at least as far into theirs: 16 times 99 of them at offset 1, 16 times 3 at
    offset 97, as in the published code. The losses of the 25 offsets are summed. Stacked
    frames leave out offsets at which both share pixels. The GRU is thrown away.
    Deviations: 16 sequences per batch instead of 64, every start equally likely; there every
    episode of at least 100 frames is.

    Starts are distinct, but sequences may overlap, as in the published code: the frame to pick then
    stands among the candidates twice, and once as a negative. Of 80,000 frames, two of 16 sequences
    overlap in a quarter of the batches, and share 1 % of all frames; of few frames, in every batch.
    """

    default_batch_size = 16

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(encoder, generator)
        n_features = encoder.features_dim
        self.offsets = [offset for offset in _OFFSETS if offset >= self.horizon]
        with torch.device("meta"):  # elsewhere it would draw from torch's global stream
            self.summary = nn.GRU(n_features, n_features, num_layers=2, batch_first=True)
        draw_default_weights_(self.summary.to_empty(device=generator.device), generator)
        self.predictors = nn.ModuleList(
            fresh_linear(n_features, n_features, generator) for _ in self.offsets
        )

    def draw(self, frames: EpisodeFrames, n_samples: int, rng: np.random.Generator) -> IntArray:
        """Return rows [B, 100]."""
        return draw_rows(frames, n_samples, range(_LENGTH), rng)

    def encode(self, images: Tensor) -> Encoded:
        """Return features [B, 100, D] of images [B, 100, C, H, W]."""
        features: Tensor = self.encoder(images.flatten(0, 1))
        return (features.view(*images.shape[:2], -1),)

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
