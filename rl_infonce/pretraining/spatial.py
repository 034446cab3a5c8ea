"""Objectives on the places of the convolutional map: ST-DIM and its relatives."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_infonce.nce import info_nce, retrieval_accuracy
from rl_infonce.objective import places
from rl_infonce.pretraining.base_objective import (
    Encoded,
    Encoder,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
    fresh_linear,
)
from rl_infonce.pretraining.episode_frames import EpisodeFrames, IntArray


class _SpatialObjective(PretrainingObjective):
    """Features and maps of every frame of a sample, and a linear predictor from features."""

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(encoder, generator)
        self.from_features = fresh_linear(encoder.features_dim, encoder.local_dim, generator)

    def encode(self, images: Tensor) -> Encoded:
        """Return features [B, L, D] and maps [B, L, C, H, W] of images [B, L, C, H, W]."""
        maps = self.encoder.local_features(images.flatten(0, 1))
        features: Tensor = self.encoder.head(maps)
        shape = images.shape[:2]
        return features.view(*shape, -1), maps.view(*shape, *maps.shape[1:])


class SpatioTemporalDIM(_SpatialObjective):
    """ST-DIM (Anand et al. 2019, the global-local and the local-local objective).

    The features of a frame, and each place of its map, pick the frame before it at that place among
    the frames before all others of the batch: bilinear scores, mean over the 88 places, sum of both
    terms. The direction is that of the published code, the reverse of the paper's equations, in
    which a frame picks the next one, as in the preset "spatial_cpc".

    Deviations from the published code: any frame that has one `horizon` frames before it is as
    likely as another; there the first frame was paired with the episode's last, episodes were drawn
    before frames, and one could occur twice in a batch. Episodes of more than `horizon` frames take
    part; there only those of more than 64 did, in pretraining as in probing.
    """

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(encoder, generator)
        self.from_map = fresh_linear(encoder.local_dim, encoder.local_dim, generator)

    def predicted_places(self, features: Tensor) -> Tensor:
        """Return what the features [B, D] predict at any place, [B, C]."""
        predicted: Tensor = self.from_features(features)
        return predicted

    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the sum of both terms, in nats, and the accuracy of the global-local one.

        The features are what is kept; local maps find their frame whatever the features say.
        """
        features, maps = encoded
        before, now = places(maps[:, 0]), places(maps[:, 1])  # [P, B, C]
        global_local = self.predicted_places(features[:, 1]) @ before.mT  # [P, B, B]
        local_local = self.from_map(now) @ before.mT
        losses = [info_nce(scores, validate_args=False) for scores in (global_local, local_local)]
        accuracy = retrieval_accuracy(global_local.detach()).float().mean()
        return PretrainingLoss(losses[0].mean() + losses[1].mean(), accuracy)


class StaticDIM(_SpatialObjective):
    """Static-DIM (Anand et al. 2019): the global-local term within one frame, without time."""

    frame_offsets = (0,)

    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the loss in nats."""
        features, maps = encoded
        scores = self.from_features(features[:, 0]) @ places(maps[:, 0]).mT
        loss = info_nce(scores, validate_args=False).mean()
        return PretrainingLoss(loss, retrieval_accuracy(scores.detach()).float().mean())


class JSDSpatioTemporalDIM(_SpatialObjective):
    """JSD-ST-DIM (Anand et al. 2019): ST-DIM's pairs, told from one negative by a yes or no.

    The negative is another frame of the same episode, at the same place; now and then it is the
    frame before, as in the published code. Each of the two terms, which are summed, is the binary
    cross-entropy, the mean over positives and negatives; log 2 less one term is a lower bound of
    the Jensen-Shannon divergence (Hjelm et al. 2019, equation 4) between pairs of neighbours and
    pairs of any frames of one episode, so that what tells episodes apart earns nothing. Deviations
    from the published code: the negative is never the frame itself, and scores have a term linear
    in the candidate, there a constant.
    """

    contrasts = False

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(encoder, generator)
        self.from_map = fresh_linear(encoder.local_dim, encoder.local_dim, generator)

    def draw(self, frames: EpisodeFrames, n_samples: int, rng: np.random.Generator) -> IntArray:
        """Return rows [B, 3]: the frame before, the frame, another one of the episode."""
        rows = super().draw(frames, n_samples, rng)
        return np.column_stack([rows, frames.others(rows[:, 1], rng)])

    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the sum of both terms, in nats, and the accuracy of the global-local one."""
        features, maps = encoded
        before, now, other = (places(maps[:, i]) for i in range(3))  # [P, B, C]
        losses, accuracies = [], []
        for predictions in (self.from_features(features[:, 1]), self.from_map(now)):
            positive = (predictions * before).sum(-1)  # [P, B]
            negative = (predictions * other).sum(-1)
            losses.append((F.softplus(-positive) + F.softplus(negative)).mean() / 2)
            accuracies.append(torch.stack([positive > 0, negative < 0]).float().mean())
        return PretrainingLoss(losses[0] + losses[1], accuracies[0].detach())
