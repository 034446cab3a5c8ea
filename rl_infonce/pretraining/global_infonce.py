"""The plugin's own loss, on single frames: temporal InfoNCE between features."""

from __future__ import annotations

import torch

from rl_infonce.objective import ContrastBatch, ObjectiveShape, TemporalInfoNCE
from rl_infonce.presets import PRESETS
from rl_infonce.pretraining.base_objective import (
    Encoded,
    Encoder,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
)


class GlobalInfoNCE(PretrainingObjective):
    """The loss of `InfoNCEExtractor`: features pick those of the frame one horizon ahead.

    The pairs are those of Global-T-DIM (Anand et al. 2019), which scores them the other way round
    and by a bilinear form of the features themselves. Here the plugin's loss first takes from the
    features their mean over the batch, of both frames apart, so that what all samples share cannot
    count; its critic is a cosine of two projections over a temperature. Scores of the two
    objectives are not those of one method. No candidate is masked: samples of large data are rarely
    close in time.
    """

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(encoder, generator)
        shape = ObjectiveShape(encoder.features_dim, local_dim=0, n_horizons=1)
        self.contrast = TemporalInfoNCE(PRESETS["cpc"], shape, generator=generator)

    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the loss in nats."""
        (features,) = encoded
        n_samples = len(features)
        contrasted = ContrastBatch(
            context=features[:, :1],
            context_used=features.new_ones(n_samples, 1, dtype=torch.bool),
            futures=features[:, 1].unsqueeze(0),
            mask=features.new_ones(1, n_samples, n_samples, dtype=torch.bool),
            mask_excludes=False,
        )
        found = self.contrast(contrasted, (self.horizon,))
        return PretrainingLoss(found.loss, found.accuracy.mean())
