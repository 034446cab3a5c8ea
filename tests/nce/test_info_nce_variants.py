"""Decoupled, soft, multi-positive, debiased and hard-negative InfoNCE."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_infonce.nce import (
    debiased_info_nce,
    decoupled_info_nce,
    hard_negative_info_nce,
    info_nce,
    multi_positive_info_nce,
    soft_info_nce,
)
from tests import oracles
from tests.draws import normal, random_mask

Loss = Callable[..., Tensor]

# exp(scores) with row sums 4, 8, 10
BY_HAND = torch.tensor([[1, 2, 1], [3, 2, 3], [4, 1, 5]], dtype=torch.float64).log()
MASKS = pytest.mark.parametrize("masked", [False, True])


def random_scores(n_anchors: int = 4, n_candidates: int = 6, seed: int = 0) -> Tensor:
    return normal(n_anchors, n_candidates, seed=seed)


def mask_of(scores: Tensor, seed: int = 1) -> Tensor:
    """Keep every positive and at least one negative."""
    mask = random_mask(*scores.shape, share=0.6, seed=seed)
    mask[:, -1] = True
    return mask


def positives_of(scores: Tensor, mask: Tensor | None) -> Tensor:
    positives = mask_of(scores, seed=3)
    return positives if mask is None else positives & mask


def soft_targets(scores: Tensor, mask: Tensor | None) -> Tensor:
    weights = torch.rand(scores.shape, generator=torch.Generator().manual_seed(2)).double()
    if mask is not None:
        weights = weights * mask
    return weights / weights.sum(dim=-1, keepdim=True)


PAIRS = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1]], dtype=torch.bool)
SHARES = torch.tensor([[0.5, 0.5, 0], [0, 1, 0], [0.25, 0.25, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (decoupled_info_nce, [3 / 1, 6 / 2, 5 / 5]),
        (partial(multi_positive_info_nce, positives=PAIRS), [8**0.5, 4, (10 / 4 * 20) ** (1 / 3)]),
        (partial(soft_info_nce, targets=SHARES), [8**0.5, 4, 25**0.25 * 2**0.5]),
        # (mean of negatives - 0.2 positive) / 0.8: (1.5 - .2) / .8, (3 - .4) / .8, (2.5 - 1) / .8
        (partial(debiased_info_nce, class_prior=0.2), [4.25, 1 + 3.25, 1 + 2 * 1.875 / 5]),
        # beta 1: sum of squares over sum of the negatives: 5/3, 18/6, 17/5
        (partial(hard_negative_info_nce, concentration=1.0), [1 + 10 / 3, 4, 1 + 6.8 / 5]),
    ],
    ids=["decoupled", "multi-positive", "soft", "debiased", "hard-negative"],
)
def test_variants_of_an_example_by_hand(loss: Loss, expected: list[float]) -> None:
    by_hand = torch.tensor(expected, dtype=torch.float64).log()
    torch.testing.assert_close(loss(BY_HAND), by_hand)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_decoupled_info_nce_of_a_cosine_is_bounded_and_of_free_scores_is_not(
    temperature: float,
) -> None:
    best = (2 * torch.eye(4, 6, dtype=torch.float64) - 1) / temperature  # cosines of 1 and -1
    expected = torch.full((4,), math.log(5) - 2 / temperature, dtype=torch.float64)
    torch.testing.assert_close(decoupled_info_nce(best), expected)
    assert float(decoupled_info_nce(1e6 * best).max()) < -1e6


@MASKS
@pytest.mark.parametrize(
    ("loss", "oracle", "targets_of"),
    [
        (decoupled_info_nce, oracles.decoupled_info_nce, None),
        (soft_info_nce, oracles.soft_info_nce, soft_targets),
        (multi_positive_info_nce, oracles.supervised_contrastive, positives_of),
    ],
    ids=["decoupled", "soft", "multi-positive"],
)
def test_variants_equal_loop_oracles(
    loss: Loss, oracle: Callable[..., list[float]], targets_of: Loss | None, masked: bool
) -> None:
    scores = random_scores()
    mask = mask_of(scores) if masked else None
    targets = [targets_of(scores, mask)] if targets_of else []
    losses = loss(scores, *targets, mask=mask)
    expected = oracle(
        *(t.tolist() for t in (scores, *targets)), None if mask is None else mask.tolist()
    )
    assert losses.tolist() == pytest.approx(expected, rel=1e-12)


@MASKS
@pytest.mark.parametrize("min_score", [-3.0, 0.5])
@pytest.mark.parametrize("class_prior", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("concentration", [0.0, 0.5, 2.0])
def test_hard_negative_info_nce_equals_loop_oracle(
    concentration: float, class_prior: float, min_score: float, masked: bool
) -> None:
    scores = random_scores()
    mask = mask_of(scores) if masked else None
    options: dict[str, Any] = {
        "concentration": concentration,
        "class_prior": class_prior,
        "min_score": min_score,
    }
    listed = None if mask is None else mask.tolist()
    expected = oracles.hard_negative_info_nce(scores.tolist(), **options, mask=listed)
    losses = hard_negative_info_nce(scores, **options, mask=mask)
    assert losses.tolist() == pytest.approx(expected, rel=1e-12)


@MASKS
@pytest.mark.parametrize(
    "loss",
    [
        lambda s, mask: decoupled_info_nce(s, mask=mask).exp().log1p(),
        lambda s, mask: soft_info_nce(s, torch.eye(*s.shape, dtype=s.dtype), mask=mask),
        lambda s, mask: multi_positive_info_nce(s, torch.eye(*s.shape).bool(), mask=mask),
        lambda s, mask: debiased_info_nce(s, class_prior=0.0, mask=mask),
        lambda s, mask: hard_negative_info_nce(s, concentration=0.0, mask=mask),
    ],
    ids=["decoupled", "soft", "multi-positive", "debiased", "hard-negative"],
)
def test_every_variant_has_info_nce_as_its_limit(loss: Loss, masked: bool) -> None:
    scores = random_scores()
    mask = mask_of(scores) if masked else None
    torch.testing.assert_close(loss(scores, mask=mask), info_nce(scores, mask=mask))


def test_a_large_concentration_looks_at_the_hardest_negative_alone() -> None:
    scores = random_scores()
    hardest = scores.masked_fill(torch.eye(*scores.shape, dtype=torch.bool), -math.inf).amax(-1)
    expected = torch.log1p(5 * (hardest - scores.diagonal()).exp())
    losses = hard_negative_info_nce(scores, concentration=1e4)
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("concentration", [1.0, 1e3, 1e5])
def test_a_large_concentration_costs_no_digits(concentration: float) -> None:
    scores = 10.0 * random_scores()
    expected = hard_negative_info_nce(scores, concentration=concentration)
    losses = hard_negative_info_nce(scores.float(), concentration=concentration)
    torch.testing.assert_close(losses, expected.float(), rtol=3e-5, atol=3e-6)


def test_debiased_info_nce_saturates_at_low_temperature_and_not_at_the_papers() -> None:
    """One positive at cosine 0.9, 510 negatives at -0.1, prior 0.1."""
    cosines = torch.full((1, 511), -0.1, dtype=torch.float64)
    cosines[0, 0] = 0.9
    scores = (cosines / 0.07).requires_grad_()
    loss = debiased_info_nce(scores, class_prior=0.1, min_score=-math.inf)
    assert float(loss.detach()) == 0.0
    assert not torch.autograd.grad(loss.sum(), scores)[0].any()
    at_half = debiased_info_nce(cosines / 0.5, class_prior=0.1, min_score=-1 / 0.5)
    assert float(at_half) == pytest.approx(3.04563, abs=1e-5)


def test_soft_targets_receive_no_gradient() -> None:
    scores = random_scores().requires_grad_()
    logits = random_scores(seed=5).requires_grad_()
    loss = soft_info_nce(scores, logits.softmax(-1)).sum()
    of_scores, of_logits = torch.autograd.grad(loss, (scores, logits), allow_unused=True)
    assert bool(of_scores.any())
    assert of_logits is None


def test_one_negative_counts() -> None:
    scores = random_scores(2, 2)
    gaps = torch.stack([scores[0, 1] - scores[0, 0], scores[1, 0] - scores[1, 1]])
    torch.testing.assert_close(decoupled_info_nce(scores), gaps)
    expected = torch.nn.functional.softplus(gaps)
    torch.testing.assert_close(hard_negative_info_nce(scores, concentration=2.0), expected)


@pytest.mark.parametrize("negative", [math.log(0.5), -3.0])
def test_no_gradient_is_ever_undefined_where_nothing_is_left_of_the_negatives(
    negative: float,
) -> None:
    scores = torch.tensor([[0.0, negative]], dtype=torch.float64, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):  # which also sees what a mask would hide
        losses = debiased_info_nce(scores, class_prior=0.5, min_score=-4.0)
        (gradient,) = torch.autograd.grad(losses.sum(), scores)
    torch.testing.assert_close(
        losses.detach()[0], torch.tensor(math.log1p(math.exp(-4.0))).double()
    )
    torch.testing.assert_close(gradient[0, 0], -1 / (1 + torch.tensor(4.0).double().exp()))
    assert gradient[0, 1] == 0


def soft(targets: Tensor, mask: Tensor | None = None) -> partial[Tensor]:
    return partial(soft_info_nce, targets=targets, mask=mask)


def multi_positive(positives: Tensor) -> partial[Tensor]:
    return partial(multi_positive_info_nce, positives=positives)


def hard(concentration: float = 1.0, **options: Any) -> partial[Tensor]:
    return partial(hard_negative_info_nce, concentration=concentration, **options)


BUT_ONE = torch.ones(4, 6).bool().index_put((torch.tensor(1), torch.tensor(3)), torch.tensor(False))
SIXTHS = torch.full((4, 6), 1 / 6, dtype=torch.float64)


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (hard(-0.1), ValueError, r"`concentration`.*-0\.1"),
        (hard(math.nan), ValueError, r"`concentration`.*nan"),
        (hard(class_prior=-0.1), ValueError, r"`class_prior`.*-0\.1"),
        (hard(class_prior=1.0), ValueError, r"`class_prior`.*< 1, got 1\.0"),
        (hard(class_prior="0.1"), TypeError, r"`class_prior`.*'0\.1'"),
        (hard(min_score=math.nan), ValueError, r"`min_score`.*nan"),
        (soft(torch.ones(4, 5)), ValueError, r"`targets`.*\[4, 6\].*\(4, 5\)"),
        (soft(SIXTHS.half()), TypeError, r"`targets`.*float64\) or float32.*float16"),
        (soft(1.01 * SIXTHS), ValueError, r"`targets`.*sum to 1"),
        (soft(6 * SIXTHS), ValueError, r"`targets`.*sum to 1.*4 other rows: 0, 1, 2, 3"),
        (soft(2 * torch.eye(4, 6).double() - SIXTHS), ValueError, r"`targets` >= 0"),
        (soft(math.nan * SIXTHS), ValueError, r"`targets` to be finite.*24"),
        (soft(SIXTHS, BUT_ONE), ValueError, r"`targets`.*0 where `mask`.*1 other rows: 1"),
        (multi_positive(torch.eye(4, 6)), TypeError, r"boolean `positives`.*float32"),
        (multi_positive(BUT_ONE[:3]), ValueError, r"`positives` broadcastable.*\(4, 6\).*\(3, 6\)"),
        (
            multi_positive(~torch.eye(4, 6).bool()),
            ValueError,
            r"`positives`.*4 other rows: 0, 1, 2, 3",
        ),
    ],
)
def test_variants_refuse_what_is_out_of_range(
    loss: Loss, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        loss(random_scores())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_soft_info_nce_takes_every_softmax_of_half_precision(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(500, 2, 8, generator=generator).to(dtype)
    targets = scores.softmax(-1)
    losses = soft_info_nce(scores, targets)
    exact = soft_info_nce(scores, scores.float().softmax(-1))
    assert losses.dtype == exact.dtype == torch.float32
    torch.testing.assert_close(losses, exact, rtol=0.02, atol=0.0)


def test_multi_positive_info_nce_refuses_positives_under_the_mask() -> None:
    scores = random_scores()
    mask, positives = torch.ones(4, 6).bool(), torch.eye(4, 6).bool()
    mask[1, 3] = positives[1, 3] = positives[2, 3] = False
    positives[2, 4] = mask[2, 5] = True
    losses = multi_positive_info_nce(scores, positives, mask=mask)
    positives[1, 3] = True
    with pytest.raises(ValueError, match=r"`positives`.*False where `mask` is.*1 other rows: 1\."):
        multi_positive_info_nce(scores, positives, mask=mask)
    twice = torch.stack([scores, scores])  # the row is found behind a leading axis also
    with pytest.raises(ValueError, match=r"2 other rows: \[0, 1\], \[1, 1\]\."):
        multi_positive_info_nce(twice, positives, mask=mask)
    kept = multi_positive_info_nce(scores, positives & mask, mask=mask)
    torch.testing.assert_close(kept, losses)


def test_multi_positive_info_nce_asks_nothing_of_a_row_without_candidates() -> None:
    mask, positives = torch.ones(4, 6).bool(), torch.ones(4, 6).bool()
    mask[2] = False
    with pytest.warns(UserWarning, match=r"no candidate and so loss 0: 2\."):
        losses = multi_positive_info_nce(random_scores(), positives, mask=mask)
    assert float(losses[2]) == 0.0
