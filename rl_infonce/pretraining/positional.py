"""Our own objective: ST-DIM whose features say where."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_infonce.pretraining.base_objective import Encoder, fresh_linear
from rl_infonce.pretraining.spatial import SpatioTemporalDIM


class PositionalDIM(SpatioTemporalDIM):
    """ST-DIM (Anand et al. 2019) with a predictor of its own for each place.

    In ST-DIM's global-local term one linear map predicts from the features what stands at every
    place. It predicts the same for all of them, so the features can say what the screen holds, and
    where only so far as the places' backgrounds differ. Here every place reads the features through
    a map of its own: to pick the frame by what stands at a place, the features must hold that
    linearly, as a probe looks for it. The pairs, the local-local term and the sum are ST-DIM's.

    On the 88 places of the paper's encoder the maps have 2.9 million weights, beside its 1.1.
    """

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(encoder, generator)
        n_outputs = encoder.n_places * encoder.local_dim
        self.from_features = fresh_linear(encoder.features_dim, n_outputs, generator)

    def predicted_places(self, features: Tensor) -> Tensor:
        """Return what the features [B, D] predict at every place, [P, B, C]."""
        predicted: Tensor = self.from_features(features)
        return predicted.view(len(features), self.encoder.n_places, -1).transpose(0, 1)
