"""Our own objective: ST-DIM at two scales, against negatives close in time."""

from __future__ import annotations

import numpy as np
import torch

from rl_infonce.nce import info_nce, retrieval_accuracy
from rl_infonce.pretraining.frames import EpisodeFrames, IntArray
from rl_infonce.pretraining.objective import (
    Encoded,
    Encoder,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
    fresh_linear,
)
from rl_infonce.pretraining.spatial import places

__all__ = ["MultiScaleDIM", "draw_clusters"]

_N_NEAR = 8
_WINDOW = 32


def draw_clusters(
    starts: IntArray, n_samples: int, rng: np.random.Generator, *, n_near: int, window: int
) -> IntArray:
    """Return starts [B] in clusters of `n_near` that lie within `window` entries of each other.

    Entries of a cluster are at least two apart: the next frame is often the same one. Where there
    are too few starts for a window, they are drawn from all.

    Args:
        starts: Ascending rows, at least one.
        n_samples: B.
        rng: Source of all randomness.
        n_near: Size of a cluster.
        window: Even, at least 2 * n_near.
    """
    if len(starts) < window:
        return rng.choice(starts, size=n_samples)
    n_clusters = -(-n_samples // n_near)
    first = rng.integers(len(starts) - window + 1, size=n_clusters)
    steps = np.stack([rng.permutation(window // 2)[:n_near] * 2 for _ in range(n_clusters)])
    drawn: IntArray = starts[(first[:, None] + steps).ravel()[:n_samples]]
    return drawn


class MultiScaleDIM(PretrainingObjective):
    """ST-DIM's two terms (Anand et al. 2019) on two maps, against negatives close in time.

    What it changes, and why:

    - A second, finer map (8 pixels apart, not 16) is picked by the features and by its own places:
      to tell a patch of 20x20 pixels among those of other frames, the features must say where a
      ball or a missile is, not only in which quarter of the screen.
    - Samples come in clusters of 8 within 32 frames of time. Within a cluster score, clock and
      level are the same and pick nothing; what moves does. The other clusters keep those.
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
        first = draw_clusters(starts, n_samples, rng, n_near=_N_NEAR, window=_WINDOW)
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
