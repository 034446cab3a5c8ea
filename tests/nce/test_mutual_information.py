from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_infonce.nce import info_nce_bound, log_candidates
from tests import oracles


def random_scores(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def optimal_scores(true_nats: float, n_batches: int, n_candidates: int) -> Tensor:
    """Return log p(y_j | x_i) / p(y_j) of 20 correlated Gaussian pairs (Poole 2019)."""
    n_dims = 20
    rho = math.sqrt(1.0 - math.exp(-2.0 * true_nats / n_dims))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_batches, n_candidates, n_dims))
    noise = rng.standard_normal((n_batches, n_candidates, n_dims))
    y = rho * x + math.sqrt(1.0 - rho**2) * noise
    x_squared = (x**2).sum(axis=-1)[:, :, None]
    y_squared = (y**2).sum(axis=-1)[:, None, :]
    distance = y_squared - 2.0 * rho * x @ y.transpose(0, 2, 1) + rho**2 * x_squared
    log_ratio = true_nats - distance / (2.0 * (1.0 - rho**2)) + y_squared / 2.0
    return torch.from_numpy(log_ratio)


@pytest.mark.parametrize("masked", [False, True])
def test_info_nce_bound_equals_loop_oracle(masked: bool) -> None:
    scores = 2.0 * random_scores(4, 6)
    mask = torch.ones(4, 6, dtype=torch.bool).triu(-1) if masked else None
    expected = oracles.info_nce_bound(scores.tolist(), None if mask is None else mask.tolist())
    assert info_nce_bound(scores, mask=mask).item() == pytest.approx(expected, rel=1e-12)


def test_info_nce_bound_keeps_leading_axes() -> None:
    scores = random_scores(2, 3, 4, 5)
    bounds = info_nce_bound(scores)
    assert bounds.shape == (2, 3)
    torch.testing.assert_close(bounds[1, 2], info_nce_bound(scores[1, 2]))


@pytest.mark.parametrize("size", [0.1, 3.0, 100.0])
def test_info_nce_bound_never_exceeds_the_ceiling(size: float) -> None:
    scores = size * random_scores(50, 6, 8)
    scores[:10] += size * 10.0 * torch.eye(6, 8, dtype=torch.float64)
    mask = (random_scores(50, 6, 8, seed=1) > 0) | torch.eye(6, 8, dtype=torch.bool)
    ceiling = log_candidates(scores, mask=mask).mean(dim=-1)
    assert bool((info_nce_bound(scores) <= math.log(8)).all())
    assert bool((info_nce_bound(scores, mask=mask) <= ceiling).all())


def test_info_nce_bound_perfect_critic_reaches_the_ceiling() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    bound = info_nce_bound(1e3 * torch.eye(2, 3, dtype=torch.float64), mask=mask)
    assert bound.item() == pytest.approx((math.log(2) + math.log(3)) / 2)


def test_info_nce_bound_constant_critic_knows_nothing() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert info_nce_bound(torch.ones(2, 3)).item() == pytest.approx(0.0, abs=1e-6)
    assert info_nce_bound(torch.ones(2, 3), mask=mask).item() == pytest.approx(0.0, abs=1e-6)


def test_info_nce_bound_of_correlated_gaussians_with_optimal_critic() -> None:
    bounds = info_nce_bound(optimal_scores(4.0, n_batches=400, n_candidates=64))
    assert bounds.mean().item() == pytest.approx(3.070, abs=0.03)


def test_info_nce_bound_grows_with_information_and_candidates() -> None:
    bounds = {
        (nats, n): info_nce_bound(optimal_scores(nats, 60, n)).mean().item()
        for nats in (2.0, 6.0)
        for n in (16, 64)
    }
    assert bounds[2.0, 16] < bounds[2.0, 64] < 2.0
    assert bounds[6.0, 16] < bounds[6.0, 64] < 6.0
    assert bounds[2.0, 16] < bounds[6.0, 16]


def test_info_nce_bound_resolves_what_bfloat16_cannot() -> None:
    scores = random_scores(8, 8).bfloat16()
    assert info_nce_bound(scores).dtype == torch.float32
    assert torch.equal(info_nce_bound(scores), info_nce_bound(scores.float()))


def test_log_candidates_counts_the_allowed() -> None:
    mask = torch.tensor([[True, False, False, False], [True, True, False, True]])
    scores = torch.zeros(2, 4, requires_grad=True)
    torch.testing.assert_close(log_candidates(scores), torch.tensor([4.0, 4.0]).log())
    counted = log_candidates(scores, mask=mask)
    torch.testing.assert_close(counted, torch.tensor([1.0, 3.0]).log())
    assert not counted.requires_grad


def test_log_candidates_refuses_a_mask_without_positives() -> None:
    with pytest.raises(ValueError, match=r"got 1 of 2 rows without it"):
        log_candidates(torch.zeros(2, 2), mask=torch.tensor([[True, True], [True, False]]))


def test_log_candidates_refuses_more_anchors_than_candidates() -> None:
    with pytest.raises(ValueError, match=r"1 <= B <= M, got \(3, 2\)"):
        log_candidates(torch.zeros(3, 2))
