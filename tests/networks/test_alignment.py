"""Alignment: the rotation and shift that bring features closest to what they were."""

import math

import pytest
import torch
from torch import Tensor

from rl_infonce.networks.alignment import TIE, Alignment, procrustes


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_rotation(size: int, *, mirrored: bool = False) -> Tensor:
    rotation: Tensor = torch.linalg.qr(drawn(size, size, seed=1))[0]
    rotation[:, 0] *= torch.det(rotation).sign() * (-1 if mirrored else 1)
    return rotation


@pytest.mark.parametrize("mirrored", [False, True])
def test_what_was_turned_and_shifted_is_turned_and_shifted_back(mirrored: bool) -> None:
    former = drawn(40, 5) * torch.tensor([1.0, 3.0, 0.5, 1.0, 2.0]) + 7
    turn = a_rotation(5, mirrored=mirrored)
    features = former @ turn - 4
    rotation, shift = procrustes(features, former, turn.T)
    torch.testing.assert_close(features @ rotation + shift, former, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rotation, turn.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_turn_of_a_plane_is_closer(seed: int) -> None:
    """Every angle, mirrored or not, by the equation of the docstring."""
    features, former = drawn(6, 2, seed=seed), drawn(6, 2, seed=seed + 10) + 1
    now = a_rotation(2)
    tie = TIE * ((former - former.mean(dim=0)) ** 2).sum() / (6 * 2)

    def distance(rotation: Tensor, shift: Tensor) -> float:
        total = 6 * float(tie * ((rotation - now) ** 2).sum())
        for feature, other in zip(features, former, strict=True):
            total += float(((feature @ rotation + shift - other) ** 2).sum())
        return total

    found = distance(*procrustes(features, former, now))
    for step in range(720):
        angle = step * math.pi / 360
        cosine, sine = math.cos(angle), math.sin(angle)
        for mirror in (1.0, -1.0):
            rotation = torch.tensor([[cosine, -mirror * sine], [sine, mirror * cosine]])
            shift = former.mean(dim=0) - features.mean(dim=0) @ rotation
            assert found <= distance(rotation, shift) + 1e-6


def test_directions_in_which_features_do_not_vary_stay_as_they_were_turned() -> None:
    now = a_rotation(6)
    features = drawn(50, 6)
    features[:, 3:] = 0.25 + 1e-5 * drawn(50, 3, seed=2)
    former = features @ now + 1e-5 * drawn(50, 6, seed=3)
    rotation, _ = procrustes(features, former, now)
    torch.testing.assert_close(rotation, now, rtol=1e-3, atol=1e-3)


def test_distances_stay_however_often_features_are_aligned() -> None:
    alignment = Alignment(4, {})
    features = drawn(30, 4)
    assert torch.equal(alignment(features), features)
    for seed in range(200):
        former = alignment(features)
        features = features + 0.1 * drawn(30, 4, seed=seed)
        assert alignment.turn_back(features, former)
    rotation = alignment.get_buffer("rotation")
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("spoilt", ["features", "former"])
@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e20])
def test_features_that_are_not_finite_turn_nothing(spoilt: str, value: float) -> None:
    given = {"features": drawn(5, 3), "former": drawn(5, 3, seed=1)}
    given[spoilt][2, 1] = value
    assert_nothing_turns(**given)


@pytest.mark.parametrize("n_rows", [0, 1])
def test_fewer_than_two_observations_turn_nothing(n_rows: int) -> None:
    assert_nothing_turns(drawn(n_rows, 3), drawn(n_rows, 3, seed=1))


def assert_nothing_turns(features: Tensor, former: Tensor) -> None:
    alignment = Alignment(3, {})
    assert not alignment.turn_back(features, former)
    assert torch.equal(alignment.get_buffer("rotation"), torch.eye(3))
    assert torch.equal(alignment.get_buffer("shift"), torch.zeros(3))


def test_constant_features_are_shifted_alone() -> None:
    alignment = Alignment(3, {})
    assert alignment.turn_back(torch.zeros(4, 3), torch.ones(4, 3))
    assert torch.equal(alignment.get_buffer("rotation"), torch.eye(3))
    assert torch.equal(alignment(torch.zeros(2, 3)), torch.ones(2, 3))
