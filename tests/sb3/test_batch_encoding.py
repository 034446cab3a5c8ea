import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from rl_infonce.sb3.batch_encoding import Encode, Encoded, contrast_batch
from rl_infonce.sb3.batch_sampling import ObservationBatch

B, L, K, D = 3, 2, 2, 4
IMAGE = (1, 5, 4)


def raw_batch() -> ObservationBatch:
    rng = np.random.default_rng(0)
    return ObservationBatch(
        context=rng.standard_normal((B, L, *IMAGE)).astype(np.float32),
        context_used=np.ones((B, L), np.bool_),
        futures=rng.standard_normal((K, B, *IMAGE)).astype(np.float32),
        mask=np.ones((K, B, B), np.bool_),
        time_mask=np.tri(B, dtype=np.bool_),
        actions=None,
    )


@pytest.mark.parametrize("with_target", [False, True])
def test_every_observation_keeps_its_place_and_targets_get_no_gradient(with_target: bool) -> None:
    online, target = nn.Conv2d(1, D, 2), nn.Conv2d(1, D, 2)

    def encoder(layer: nn.Conv2d) -> Encode:
        def encode(observations: npt.NDArray[np.generic]) -> Encoded:
            maps = layer(torch.as_tensor(observations))
            return Encoded(maps.mean((2, 3)), maps)

        return encode

    raw = raw_batch()
    batch = contrast_batch(
        raw, encoder(online), encoder(target) if with_target else None, spatial=True, actions=None
    )
    past = torch.stack([online(torch.as_tensor(images)) for images in raw.context])
    of_futures = target if with_target else online
    later = torch.stack([of_futures(torch.as_tensor(images)) for images in raw.futures])
    assert batch.anchor_maps is not None
    assert batch.future_maps is not None
    torch.testing.assert_close(batch.context, past.mean((3, 4)))
    torch.testing.assert_close(batch.futures, later.mean((3, 4)))
    torch.testing.assert_close(batch.anchor_maps, past[:, -1])
    torch.testing.assert_close(batch.future_maps, later)
    np.testing.assert_array_equal(batch.time_mask, raw.time_mask)
    assert batch.context.requires_grad
    assert batch.futures.requires_grad != with_target
    assert batch.future_maps.requires_grad != with_target


@pytest.mark.parametrize("excluded", [None, (0, 0, 1), (K - 1, B - 1, 0)])
def test_a_batch_says_whether_its_mask_excludes_anything(
    excluded: tuple[int, int, int] | None,
) -> None:
    raw = raw_batch()
    if excluded is not None:
        raw.mask[excluded] = False

    def encode(observations: npt.NDArray[np.generic]) -> Encoded:
        return Encoded(torch.as_tensor(observations).flatten(1), None)

    batch = contrast_batch(raw, encode, None, spatial=False, actions=None)
    assert batch.mask_excludes == (excluded is not None)
    assert isinstance(batch.mask_excludes, bool)
