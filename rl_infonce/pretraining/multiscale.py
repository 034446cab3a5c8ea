"""Our own objective: ST-DIM at two scales, against negatives close in time."""

from __future__ import annotations

import numpy as np
import torch

from rl_infonce.nce import info_nce, retrieval_accuracy
from rl_infonce.objective import places
from rl_infonce.pretraining.frames import EpisodeFrames, IntArray
from rl_infonce.pretraining.objective import (
    Encoded,
    Encoder,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
    fresh_linear,
)

__all__ = ["MultiScaleDIM", "draw_clusters"]

_N_NEAR = 8


def draw_clusters(
    starts: IntArray, n_samples: int, rng: np.random.Generator, *, n_near: int, spacing: int
) -> IntArray:
    """Return distinct starts [B], in clusters of `n_near` that are close in time.

    A cluster lies within 2 * n_near * spacing entries of `starts` and its members are a multiple of
    `spacing` apart; clusters do not overlap. At the seam of two episodes a cluster may hold both.

    Args:
        starts: Ascending rows.
        n_samples: B.
        rng: Source of all randomness.
        n_near: Size of a cluster.
        spacing: At least 1.

    Raises:
        ValueError: If there are fewer windows than clusters.
    """
    window = 2 * n_near * spacing
    n_clusters = -(-n_samples // n_near)
    n_windows = len(starts) // window
    if n_windows < n_clusters:
        raise ValueError(
            f"Expected {n_clusters * window} frames to draw {n_samples} samples in clusters from, "
            f"got {len(starts)}. Collect more frames, or lower the batch size."
        )
    shift = int(rng.integers(len(starts) - n_windows * window + spacing))
    first = shift + window * rng.choice(n_windows, size=n_clusters, replace=False)
    steps = np.stack([rng.permutation(2 * n_near)[:n_near] for _ in range(n_clusters)])
    drawn: IntArray = starts[(first[:, None] + spacing * steps).ravel()[:n_samples]]
    return drawn


class MultiScaleDIM(PretrainingObjective):
    """ST-DIM's two terms (Anand et al. 2019) on two maps, against negatives close in time.

    What it changes, and why:

    - A second, finer map is picked by the features and by its own places. On 210x160 screens they
      are 8 pixels apart, not 16, and see 20x20 pixels: to tell such a patch among those of other
      frames, the features must say where a ball or a missile is, not only in which part of the
      screen.
    - Samples come in clusters of 8 close in time. Within a cluster score, clock and level are the
      same and pick nothing; what moves does. The other clusters keep those. Members are as far
      apart as keeps each one's own frame out of the others' negatives.
    """

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(encoder, generator)
        n_features, fine, coarse = encoder.features_dim, encoder.fine_dim, encoder.local_dim
        self.from_features = torch.nn.ModuleList(
            [fresh_linear(n_features, n, generator) for n in (fine, coarse)]
        )
        self.from_map = torch.nn.ModuleList([fresh_linear(n, n, generator) for n in (fine, coarse)])

    def draw(self, frames: EpisodeFrames, n_samples: int, rng: np.random.Generator) -> IntArray:
        """Return rows [B, 2]: the frame before, the frame."""
        starts = frames.starts(self.horizon + 1)
        first = draw_clusters(starts, n_samples, rng, n_near=_N_NEAR, spacing=self.horizon + 1)
        return np.stack([first, first + self.horizon], axis=1)

    def encode(self, images: torch.Tensor) -> Encoded:
        """Return features [B, 2, D] and two maps [B, 2, C, H, W] of images [B, 2, C, H, W]."""
        fine, coarse = self.encoder.local_maps(images.flatten(0, 1))
        features = self.encoder.head(coarse)
        shape = images.shape[:2]
        return tuple(each.view(*shape, *each.shape[1:]) for each in (features, fine, coarse))

    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the sum of both terms on both maps, in nats."""
        features, *maps = encoded
        losses, accuracy = [], features.new_zeros(())
        for each, from_features, from_map in zip(
            maps, self.from_features, self.from_map, strict=True
        ):
            before, now = places(each[:, 0]), places(each[:, 1])  # [P, B, C]
            global_local = from_features(features[:, 1]) @ before.mT  # [P, B, B]
            local_local = from_map(now) @ before.mT
            losses += [
                info_nce(scores, validate_args=False).mean()
                for scores in (global_local, local_local)
            ]
            accuracy = retrieval_accuracy(global_local.detach()).mean()
        return PretrainingLoss(torch.stack(losses).sum(), accuracy)
