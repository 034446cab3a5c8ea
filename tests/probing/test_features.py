from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from rl_infonce.probing import extract_features


class Encoder(nn.Module):
    """Flatten, normalise by batch statistics when training, drop out when training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout, self.head = nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 3)
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        assert images.dtype == torch.uint8
        self.sizes.append(len(images))
        features: Tensor = self.head(self.dropout(self.norm(images.flatten(1) / 255)))
        return features


def images(n: int = 21) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (n, 1, 3, 4)).astype(np.uint8)


def test_features_are_those_of_the_encoder_in_evaluation_mode() -> None:
    encoder = Encoder()
    encoder.norm.eval()
    found = extract_features(encoder, images(), batch_size=8)
    assert encoder.sizes == [8, 8, 5]
    assert encoder.training
    assert encoder.dropout.training
    assert not encoder.norm.training
    encoder.eval()
    with torch.no_grad():
        expected = encoder(torch.as_tensor(images())).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_extraction_leaves_no_trace() -> None:
    encoder = Encoder()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    state = torch.get_rng_state()
    extract_features(encoder, images())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_modes_come_back_after_an_error() -> None:
    encoder = Encoder()
    with pytest.raises(RuntimeError):
        extract_features(encoder, images()[:, :, :2])
    assert encoder.dropout.training


def test_views_are_read_in_batches() -> None:
    class View:
        shape, dtype = (21, 1, 3, 4), np.dtype(np.uint8)
        largest = 0

        def __len__(self) -> int:
            return 21

        def __getitem__(self, rows: Any) -> npt.NDArray[np.uint8]:
            self.largest = max(self.largest, len(rows))
            found: npt.NDArray[np.uint8] = images()[rows]
            return found

    view = View()
    found = extract_features(lambda x: x.flatten(1).double(), view, batch_size=4)
    np.testing.assert_array_equal(found, images().reshape(21, 12))
    assert view.largest == 4


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="at least one observation"):
        extract_features(Encoder(), images(0))
    with pytest.raises(ValueError, match="`batch_size` to be a finite number >= 1, got 0"):
        extract_features(Encoder(), images(), batch_size=0)
    with pytest.raises(ValueError, match=r"return \[21, D\] for \(21, 1, 3, 4\).* Flatten"):
        extract_features(lambda x: x, images())
