from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from rl_infonce.sb3.batch_encoding import Encoded, Encoder, contrast_batch
from rl_infonce.sb3.batch_sampling import ObservationBatch

B, L, K, D = 3, 2, 2, 4


def raw_batch() -> ObservationBatch:
    rng = np.random.default_rng(0)
    return ObservationBatch(
        context=rng.standard_normal((B, L, 5)).astype(np.float32),
        context_used=np.ones((B, L), np.bool_),
        futures=rng.standard_normal((K, B, 5)).astype(np.float32),
        mask=np.ones((K, B, B), np.bool_),
        time_mask=np.tri(B, dtype=np.bool_),
        actions=None,
    )


@pytest.mark.parametrize("with_target", [False, True])
def test_every_observation_keeps_its_place_and_targets_get_no_gradient(with_target: bool) -> None:
    online, target = nn.Linear(5, D), nn.Linear(5, D)

    def encoder(layer: nn.Linear) -> Encoder:
        def encode(observations: npt.NDArray[np.generic]) -> Encoded:
            features = layer(torch.as_tensor(observations))
            return Encoded(features, features[:, :, None, None])

        return encode

    raw = raw_batch()
    batch = contrast_batch(
        raw, encoder(online), encoder(target) if with_target else None, spatial=True, actions=None
    )
    of_futures = target if with_target else online
    torch.testing.assert_close(batch.context, online(torch.as_tensor(raw.context)))
    torch.testing.assert_close(batch.futures, of_futures(torch.as_tensor(raw.futures)))
    assert batch.anchor_maps is not None
    assert batch.future_maps is not None
    torch.testing.assert_close(batch.anchor_maps[..., 0, 0], batch.context[:, -1])
    torch.testing.assert_close(batch.future_maps[..., 0, 0], batch.futures)
    np.testing.assert_array_equal(batch.time_mask, raw.time_mask)
    assert batch.context.requires_grad
    assert batch.futures.requires_grad != with_target
    assert batch.future_maps.requires_grad != with_target
