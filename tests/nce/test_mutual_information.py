import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_infonce.nce import (
    density_ratio_score,
    dv_estimate,
    info_nce,
    info_nce_bound,
    is_saturated,
    log_candidates,
    moving_log_mean_exp,
    nwj_bound,
    smile_estimate,
)
from tests import oracles
from tests.draws import normal


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


@pytest.mark.parametrize("size", [0.1, 3.0, 100.0])
def test_info_nce_bound_never_exceeds_the_ceiling(size: float) -> None:
    scores = size * normal(50, 6, 8)
    scores[:10] += size * 10.0 * torch.eye(6, 8, dtype=torch.float64)
    mask = (normal(50, 6, 8, seed=1) > 0) | torch.eye(6, 8, dtype=torch.bool)
    ceiling = log_candidates(scores, mask=mask).mean(dim=-1)
    assert bool((info_nce_bound(scores) <= math.log(8)).all())
    assert bool((info_nce_bound(scores, mask=mask) <= ceiling).all())


def test_the_ceiling_of_info_nce_bound_is_that_of_the_rows_with_candidates() -> None:
    scores, mask = 1e3 * torch.eye(4), torch.ones(4, 4, dtype=torch.bool)
    mask[3] = mask[:, 3] = False
    bound = info_nce_bound(scores, mask=mask)
    with pytest.warns(UserWarning, match=r"1 of 4 rows have no candidate and so ceiling 0: 3\."):
        each = log_candidates(scores, mask=mask)
    assert float(bound) == pytest.approx(float(each[mask.diagonal()].mean()))
    assert float(bound) > float(each.mean())


def test_info_nce_bound_of_a_perfect_critic_is_the_ceiling_and_of_a_constant_one_0() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    bound = info_nce_bound(1e3 * torch.eye(2, 3, dtype=torch.float64), mask=mask)
    assert bound.item() == pytest.approx((math.log(2) + math.log(3)) / 2)
    for each in (None, mask):
        assert info_nce_bound(torch.ones(2, 3), mask=each).item() == pytest.approx(0.0, abs=1e-6)


def test_info_nce_bound_of_pairs_that_were_trained_on_bounds_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    trained, held_out = torch.randn(2, 2, 64, 32, generator=generator, dtype=torch.float64)
    weight = torch.zeros(32, 32, dtype=torch.float64, requires_grad=True)  # of independent pairs
    for _ in range(100):
        bound = info_nce_bound(trained[0] @ weight @ trained[1].T)
        (gradient,) = torch.autograd.grad(bound, weight)
        weight = (weight + 0.5 * gradient).detach().requires_grad_()
    assert float(bound.detach()) > 2
    assert float(info_nce_bound(held_out[0] @ weight.detach() @ held_out[1].T)) < 0


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


def test_log_candidates_counts_the_allowed() -> None:
    mask = torch.tensor([[True, False, False, False], [True, True, False, True]])
    scores = torch.zeros(2, 4, requires_grad=True)
    torch.testing.assert_close(log_candidates(scores), torch.tensor([4.0, 4.0]).log())
    counted = log_candidates(scores, mask=mask)
    torch.testing.assert_close(counted, torch.tensor([1.0, 3.0]).log())
    assert not counted.requires_grad


def holes(scores: Tensor) -> Tensor:
    """Every positive, every second negative."""
    n_rows, n_columns = scores.shape[-2:]
    steps = torch.arange(n_columns) - torch.arange(n_rows)[:, None]
    return steps % 2 == 0


@pytest.mark.parametrize("masked", [False, True])
def test_estimates_equal_loop_oracles(masked: bool) -> None:
    scores = 2.0 * normal(4, 6)
    mask = holes(scores) if masked else None
    listed = None if mask is None else mask.tolist()
    nwj, smile = oracles.nwj_bound(scores.tolist(), listed), oracles.smile_estimate
    assert nwj_bound(scores, mask=mask).item() == pytest.approx(nwj, rel=1e-12)
    info_nce = oracles.info_nce_bound(scores.tolist(), listed)
    assert info_nce_bound(scores, mask=mask).item() == pytest.approx(info_nce, rel=1e-12)
    for clip in (0.5, 2.0):
        expected = smile(scores.tolist(), clip, listed)
        got = smile_estimate(scores, clip=clip, mask=mask).item()
        assert got == pytest.approx(expected, rel=1e-12)
    unclipped = smile(scores.tolist(), 100.0, listed)
    assert dv_estimate(scores, mask=mask).item() == pytest.approx(unclipped, rel=1e-12)
    assert smile_estimate(scores, clip=math.inf, mask=mask).item() == pytest.approx(unclipped)


def test_estimates_of_an_example_by_hand() -> None:
    """Exponentials 4, 2 on the diagonal; 1, 1 (off it); so E_joint = log 8 / 2, E_product = 1."""
    scores = torch.tensor([[4.0, 1.0], [1.0, 2.0]], dtype=torch.float64).log()
    half_log_8 = math.log(8) / 2
    assert nwj_bound(scores).item() == pytest.approx(half_log_8)
    assert dv_estimate(scores).item() == pytest.approx(half_log_8)
    assert dv_estimate(scores + 3).item() == pytest.approx(half_log_8)
    assert nwj_bound(scores + 3).item() == pytest.approx(1 + half_log_8 + 3 - math.exp(3))
    assert smile_estimate(scores - 9, clip=2.0).item() == pytest.approx(half_log_8 - 9 + 2)


@pytest.mark.parametrize("estimate", [nwj_bound, dv_estimate, smile_estimate, info_nce_bound])
def test_estimates_keep_leading_axes(estimate: Callable[..., Tensor]) -> None:
    scores = normal(2, 3, 4, 5)
    for mask in (None, holes(scores)):
        values = estimate(scores, mask=mask)
        assert values.shape == (2, 3)
        torch.testing.assert_close(values[1, 2], estimate(scores[1, 2], mask=mask))


@pytest.mark.parametrize("estimate", [nwj_bound, dv_estimate, smile_estimate, info_nce_bound])
def test_rows_without_candidates_do_not_count(estimate: Callable[..., Tensor]) -> None:
    scores = normal(4, 4)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = mask[:, 1] = False
    kept = torch.tensor([0, 2, 3])
    value = estimate(scores, mask=mask)  # without a warning: nothing is left to be done
    torch.testing.assert_close(value, estimate(scores[kept][:, kept]))


def test_a_row_without_negatives_counts_in_the_bound_without_a_warning() -> None:
    scores = normal(3, 3)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = torch.tensor([False, True, False])
    gained = log_candidates(scores, mask=mask) - info_nce(scores, mask=mask, validate_args=False)
    assert gained[1] == 0.0
    torch.testing.assert_close(info_nce_bound(scores, mask=mask), gained.sum() / 3)


@pytest.mark.parametrize("true_nats", [2, 6])
def test_estimates_of_correlated_gaussians_follow_the_published_pattern(true_nats: int) -> None:
    """With the optimal critic NWJ is unbiased, DV high, and SMILE no lower bound."""
    scores = optimal_scores(true_nats, n_batches=400, n_candidates=64)
    nwj, dv = nwj_bound(scores), dv_estimate(scores)
    smile = smile_estimate(scores, clip=1.0)
    assert float(nwj.mean()) == pytest.approx(true_nats, abs=4 * float(nwj.std()) / 20)
    assert float(smile.mean()) > true_nats + 0.3
    if true_nats == 6:
        assert float(dv.mean()) > true_nats + 0.1
        assert float(nwj.var() / info_nce_bound(scores).var()) > 50


def test_song_and_ermons_variance_of_nwj_is_reached() -> None:
    """Theorem 2: the product term alone varies by at least (e^I - 1) / n over n pairs."""
    scores = optimal_scores(2, n_batches=2000, n_candidates=8)
    product_term = 1 + scores.diagonal(dim1=-2, dim2=-1).mean(dim=-1) - nwj_bound(scores)
    assert float(product_term.var()) > (math.exp(2) - 1) / 56


def test_the_moving_average_corrects_the_gradient_of_dv_and_not_its_value() -> None:
    scores = normal(4, 4).requires_grad_()
    past = torch.tensor(0.7, dtype=torch.float64)
    plain, corrected = dv_estimate(scores), dv_estimate(scores, log_moving_mean=past)
    torch.testing.assert_close(plain, corrected)
    assert dv_estimate(torch.zeros(3, 4, 4), log_moving_mean=torch.zeros(3)).shape == (3,)
    (of_plain,) = torch.autograd.grad(plain, scores)
    (of_corrected,) = torch.autograd.grad(corrected, scores)
    off = ~torch.eye(4, dtype=torch.bool)
    # Belghazi et al. 2018, eq. 12: E[grad exp s] / moving mean
    by_hand = -scores.detach().exp()[off] / 12 / past.exp()
    torch.testing.assert_close(of_corrected[off], by_hand)
    torch.testing.assert_close(of_corrected.diagonal(), of_plain.diagonal())
    ratio = scores.detach().exp()[off].mean() / past.exp()
    torch.testing.assert_close(of_corrected[off], of_plain[off] * ratio)


def test_a_moving_average_far_below_the_batch_leaves_the_value_of_dv_alone() -> None:
    scores = (100 * torch.ones(3, 3)).requires_grad_()
    estimate = dv_estimate(scores, log_moving_mean=torch.tensor(0.0))
    assert float(estimate.detach()) == 0.0
    (gradient,) = torch.autograd.grad(estimate, scores)
    assert bool(gradient.isfinite().all())
    off = ~torch.eye(3, dtype=torch.bool)
    assert float(gradient[off].max()) < -1e30


def test_the_moving_log_mean_is_the_log_of_a_moving_mean() -> None:
    batches = 30.0 * normal(3, 4, 4)
    off = ~torch.eye(4, dtype=torch.bool)
    means = [batch[off].exp().mean() for batch in batches]
    expected = 0.8 * (0.8 * means[0] + 0.2 * means[1]) + 0.2 * means[2]
    moving: Tensor | None = None
    for batch in batches:
        moving = moving_log_mean_exp(batch.requires_grad_(), moving, decay=0.8)
    assert moving is not None
    assert not moving.requires_grad
    torch.testing.assert_close(moving, expected.log())
    torch.testing.assert_close(moving_log_mean_exp(batches[0], moving, decay=1.0), moving)
    torch.testing.assert_close(moving_log_mean_exp(batches[0], moving, decay=0.0), means[0].log())


@pytest.mark.parametrize("size", [1e4, 6e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_estimates_of_extreme_scores_are_exact(size: float, dtype: torch.dtype) -> None:
    scores = size * (2 * torch.eye(3) - 1).to(dtype)
    assert dv_estimate(scores).item() == 2 * size
    assert smile_estimate(scores, clip=3.0).item() == size + 3.0
    assert info_nce_bound(scores).item() == pytest.approx(math.log(3))
    assert nwj_bound(scores).item() == 1 + size
    assert nwj_bound(-scores).item() == -math.inf


def test_saturation_is_flagged_within_the_margin() -> None:
    ceiling = torch.tensor(math.log(64))
    bounds = ceiling - torch.tensor([0.0, 0.19, 0.21, 3.0])
    assert is_saturated(bounds, ceiling).tolist() == [True, True, False, False]
    assert is_saturated(bounds, ceiling, margin=0.0).tolist() == [False] * 4
    with pytest.raises(ValueError, match=r"`margin`.*-1"):
        is_saturated(bounds, ceiling, margin=-1.0)


def test_density_ratio_score_equals_loop_oracle_and_ignores_constants_per_anchor() -> None:
    scores, references = normal(5), 2.0 * normal(5, 7, seed=1)
    expected = oracles.density_ratio_score(scores.tolist(), references.tolist())
    torch.testing.assert_close(
        density_ratio_score(scores, references), torch.tensor(expected, dtype=torch.float64)
    )
    constants = 10.0 * normal(5, seed=2)
    torch.testing.assert_close(
        density_ratio_score(scores + constants, references + constants[:, None]),
        density_ratio_score(scores, references),
    )


def test_density_ratio_score_is_at_most_log_m_above_the_lead_over_the_best_reference() -> None:
    assert density_ratio_score(torch.tensor([100.0]), torch.zeros(1, 4)).tolist() == [100.0]
    scores, references = normal(50), 3 * normal(50, 7, seed=1)
    lead = scores - references.amax(dim=-1)
    found = density_ratio_score(scores, references)
    assert bool(((lead <= found) & (found <= lead + math.log(7))).all())


def test_density_ratio_score_recovers_the_true_ratio_of_a_finite_joint() -> None:
    joint = torch.tensor([[0.3, 0.1, 0.1], [0.05, 0.25, 0.2]], dtype=torch.float64)
    of_c, of_x = joint.sum(1), joint.sum(0)
    ratio = (joint / of_c[:, None] / of_x).log()
    scores = ratio + torch.tensor([[4.0], [-2.0]])
    # references in exact proportion to the marginal, in units of 0.05
    copies = (of_x / 0.05).round().long()
    references = scores.repeat_interleave(copies, dim=1)
    for x in range(3):
        torch.testing.assert_close(density_ratio_score(scores[:, x], references), ratio[:, x])


@pytest.mark.parametrize("estimate", [nwj_bound, dv_estimate, smile_estimate, moving_log_mean_exp])
def test_estimates_without_a_negative_are_refused(estimate: Callable[..., Tensor]) -> None:
    extra = (None,) if estimate is moving_log_mean_exp else ()
    with pytest.raises(ValueError, match=r"at least one negative.*\(1, 1\).*two"):
        estimate(torch.zeros(1, 1), *extra)


NOT_FINITE = "`log_moving_mean` to be finite"
NO_NUMBER = r"`log_moving_mean` to be 0-dim or of shape \(\)"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: smile_estimate(s, clip=0.0), ValueError, r"`clip`.*0\.0"),
        (lambda s: smile_estimate(s, clip=math.nan), ValueError, r"`clip`.*nan"),
        (lambda s: moving_log_mean_exp(s, None, decay=1.5), ValueError, r"`decay`.*1\.5"),
        (lambda s: nwj_bound(s.int()), TypeError, r"`scores`.*int32"),
        (lambda s: dv_estimate(s[0]), ValueError, r"`scores`.*\(4,\)"),
        (lambda s: nwj_bound(s + math.inf), ValueError, r"`scores` to be finite.*16 of 16"),
        (lambda s: density_ratio_score(s, s), ValueError, r"`scores`.*\[B\]"),
        (lambda s: density_ratio_score(s[0], s[:2]), ValueError, r"`reference_scores`.*\[4, M\]"),
        (lambda s: density_ratio_score(s[0], s[:, :0]), ValueError, r"M >= 1"),
        (lambda s: density_ratio_score(s[0], s.float()), TypeError, r"`reference_scores`.*float64"),
        (lambda s: density_ratio_score(s[0] / 0, s), ValueError, r"`scores` to be finite"),
        (lambda s: log_candidates(s, mask=s < 0), ValueError, r"got . of 4 rows without it"),
        (lambda s: log_candidates(s[:, :3]), ValueError, r"1 <= B <= M, got \(4, 3\)"),
        (lambda s: dv_estimate(s, log_moving_mean=s[0, :3]), ValueError, NO_NUMBER),
        (lambda s: dv_estimate(s, log_moving_mean=s[0, :1]), ValueError, NO_NUMBER),
        (lambda s: dv_estimate(s, log_moving_mean=s[0, 0] / 0), ValueError, NOT_FINITE),
        (lambda s: moving_log_mean_exp(s, s[0, :3]), ValueError, "`previous` to be 0-dim"),
        (lambda s: moving_log_mean_exp(s, s[0, :1]), ValueError, "`previous` to be 0-dim"),
        (lambda s: moving_log_mean_exp(s, 0.0), TypeError, "`previous` to be a tensor, got float"),  # type: ignore[arg-type]
    ],
)
def test_estimates_refuse_what_does_not_fit(
    call: Callable[[Tensor], Tensor], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(normal(4, 4))


ESTIMATES = pytest.mark.parametrize(
    "estimate",
    [info_nce_bound, nwj_bound, dv_estimate, partial(smile_estimate, clip=1.0)],
    ids=["info_nce", "nwj", "dv", "smile"],
)


@ESTIMATES
def test_gradients_with_a_mask_and_a_learned_temperature_agree_with_finite_differences(
    estimate: Callable[..., Tensor],
) -> None:
    scores = normal(4, 4).requires_grad_()
    log_scale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def scaled(scores: Tensor, log_scale: Tensor) -> Tensor:
        return estimate(log_scale.exp() * scores, mask=holes(scores))

    assert torch.autograd.gradcheck(scaled, (scores, log_scale))


def test_gradients_of_the_density_ratio_agree_with_finite_differences() -> None:
    inputs = (normal(3).requires_grad_(), normal(3, 4, seed=1).requires_grad_())
    assert torch.autograd.gradcheck(density_ratio_score, inputs)


@ESTIMATES
def test_estimates_ignore_autocast_and_compute_half_precision_in_float32(
    estimate: Callable[..., Tensor],
) -> None:
    scores = normal(6, 6).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = estimate(scores)
    assert inside.dtype == estimate(scores).dtype == torch.float32
    assert torch.equal(inside, estimate(scores.float()))
    assert torch.equal(inside, estimate(scores))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    size=st.floats(0.01, 20.0),
    n=st.integers(2, 6),
    shift=st.floats(-20.0, 20.0),
    clip=st.floats(0.1, 30.0),
)
def test_inequalities_and_shifts_of_the_estimates(
    seed: int, size: float, n: int, shift: float, clip: float
) -> None:
    scores = size * normal(n, n, seed=seed)
    dv = dv_estimate(scores)
    # log x <= x - 1 at x = E[exp s]
    assert nwj_bound(scores) <= dv + 1e-9
    torch.testing.assert_close(dv_estimate(scores + shift), dv, rtol=1e-6, atol=1e-6)
    # one constant makes NWJ reach DV: the one that takes E[exp s] to 1
    centred = scores - (scores.diagonal().mean() - dv)
    torch.testing.assert_close(nwj_bound(centred), dv, rtol=1e-6, atol=1e-6)
    largest = float(scores.abs().max()) + 1.0
    torch.testing.assert_close(smile_estimate(scores, clip=largest), dv)
    product = scores.diagonal().mean() - smile_estimate(scores, clip=clip)
    assert -clip - 1e-9 <= float(product) <= clip + 1e-9


def test_only_the_bound_of_info_nce_is_blind_to_constants_of_rows() -> None:
    scores, constants = normal(6, 6), 3 * normal(6, 1, seed=1)
    torch.testing.assert_close(info_nce_bound(scores + constants), info_nce_bound(scores))
    for other in (dv_estimate, smile_estimate, nwj_bound):
        assert (other(scores + constants) - other(scores)).abs() > 0.1
