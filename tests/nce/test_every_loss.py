"""What holds for InfoNCE and each of its relatives alike."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_infonce.nce import (
    debiased_info_nce,
    decoupled_info_nce,
    hard_negative_info_nce,
    info_nce,
    info_nce_bound,
    log_candidates,
    multi_positive_info_nce,
    retrieval_accuracy,
    soft_info_nce,
    symmetric_info_nce,
)
from tests.draws import normal

Loss = Callable[..., Tensor]


def soft(scores: Tensor, mask: Tensor | None = None, **kwargs: bool) -> Tensor:
    """Half of the target on the positive, the rest shared by all candidates that take part.

    A row without any shares its target among all, as a caller who knows nothing of masks does.
    """
    allowed = torch.ones_like(scores)
    if mask is not None and not mask.is_meta:
        allowed = allowed * mask
    allowed = allowed.where(allowed.any(-1, keepdim=True), 1.0)
    targets = allowed / allowed.sum(dim=-1, keepdim=True)
    targets = (targets + torch.eye(*scores.shape[-2:], dtype=scores.dtype)) / 2
    return soft_info_nce(scores, targets, mask=mask, **kwargs)


def same_parity(scores: Tensor) -> Tensor:
    n_rows, n_columns = scores.shape[-2:]
    return (torch.arange(n_columns) - torch.arange(n_rows)[:, None]) % 2 == 0


def multi_positive(scores: Tensor, mask: Tensor | None = None, **kwargs: bool) -> Tensor:
    """Candidates of the same parity are positives, if they take part."""
    positives = same_parity(scores)
    if mask is not None and mask.dtype == torch.bool and not mask.is_meta:
        positives = positives & mask | torch.eye(*scores.shape[-2:], dtype=torch.bool)
    return multi_positive_info_nce(scores, positives, mask=mask, **kwargs)


LOSSES: dict[str, Loss] = {
    "info_nce": info_nce,
    "symmetric": symmetric_info_nce,
    "decoupled": decoupled_info_nce,
    "soft": soft,
    "multi-positive": multi_positive,
    "debiased": partial(debiased_info_nce, class_prior=0.1),
    "hard-negative": partial(hard_negative_info_nce, concentration=0.5),
}
ALL = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
SHIFT_FREE = pytest.mark.parametrize(
    "loss", [loss for name, loss in LOSSES.items() if name != "symmetric"]
)
EXAMPLES = settings(max_examples=50, deadline=None, derandomize=True)


def random_mask(*shape: int, seed: int = 1) -> Tensor:
    """Every row keeps its positive and at least one negative."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(*shape, generator=generator) < 0.5
    n = shape[-1]
    steps = (torch.arange(n) - torch.arange(shape[-2])[:, None]) % n
    return mask | (steps <= 1)


@st.composite
def matrices(draw: st.DrawFn, largest: float = 30.0) -> Tensor:
    n = draw(st.integers(2, 5))
    numbers = st.floats(-largest, largest, allow_nan=False, width=32)
    rows = draw(st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=n, max_size=n))
    return torch.tensor(rows, dtype=torch.float64)


@ALL
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_with_a_learned_temperature_agree_with_finite_differences(
    loss: Loss, masked: bool
) -> None:
    scores, mask = normal(2, 3, 3).requires_grad_(), random_mask(2, 3, 3) if masked else None
    log_scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def scaled(scores: Tensor, log_scale: Tensor) -> Tensor:
        return loss(log_scale.exp() * scores, mask=mask)

    assert torch.autograd.gradcheck(scaled, (scores, log_scale))


@ALL
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e4), (torch.float16, 6e4)])
def test_extreme_scores_are_exact_and_their_gradients_finite(
    loss: Loss, dtype: torch.dtype, size: float
) -> None:
    signs = torch.tensor([[1, -1, 1, 1], [-1, -1, 1, -1], [-1, -1, 1, -1], [-1, 1, -1, 1]])
    scores = (size * signs).to(dtype).requires_grad_()
    losses = loss(scores)
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert losses.dtype == torch.float32
    assert bool(gradient.isfinite().all())
    exact = loss(scores.detach().double())
    torch.testing.assert_close(losses.detach().double(), exact, rtol=1e-6, atol=1e-6)


@ALL
def test_losses_ignore_autocast(loss: Loss) -> None:
    scores, mask = normal(6, 6).float(), random_mask(6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(scores, mask=mask)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, loss(scores, mask=mask))


@ALL
def test_leading_axes_are_independent_problems(loss: Loss) -> None:
    scores, mask = normal(2, 3, 4, 4), random_mask(2, 3, 4, 4)
    losses = loss(scores, mask=mask)
    assert losses.shape == (2, 3, 4)
    torch.testing.assert_close(losses[1, 2], loss(scores[1, 2], mask=mask[1, 2]))


@ALL
def test_a_row_without_any_candidate_costs_nothing_and_is_named(loss: Loss) -> None:
    scores = normal(4, 4).requires_grad_()
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = mask[:, 2] = False
    with pytest.warns(UserWarning, match=r"1 of 4 rows have no candidate and so loss 0: 2\."):
        losses = loss(scores, mask=mask)
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert float(losses.detach()[2]) == 0.0
    assert not gradient[2].any()
    assert not gradient[:, 2].any()
    assert bool(gradient.isfinite().all())
    assert bool(losses.detach()[[0, 1, 3]].abs().min() > 0)


@ALL
def test_a_row_without_negatives_costs_nothing_and_is_named(loss: Loss) -> None:
    scores = normal(4, 4).requires_grad_()
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = mask[:, 2] = False
    mask[2, 2] = True
    with pytest.warns(
        UserWarning, match=r"1 of 4 rows have no negative and so loss 0: 2\."
    ) as found:
        losses = loss(scores, mask=mask)
    assert len(found) == 1
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert float(losses.detach()[2]) == 0.0
    assert not gradient[2].any()
    assert bool(gradient.isfinite().all())
    kept = torch.tensor([0, 1, 3])
    torch.testing.assert_close(losses[kept], loss(scores, mask=mask, validate_args=False)[kept])


@ALL
def test_the_only_pair_of_a_batch_is_named(loss: Loss) -> None:
    with pytest.warns(UserWarning, match=r"1 of 1 rows have no negative and so loss 0: 0\."):
        assert loss(torch.ones(1, 1)).tolist() == [0.0]


@ALL
def test_masked_scores_may_be_anything(loss: Loss) -> None:
    scores, mask = normal(5, 5), random_mask(5, 5)
    poisoned = scores.masked_fill(~mask, math.nan)
    torch.testing.assert_close(loss(poisoned, mask=mask), loss(scores, mask=mask))


@ALL
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(loss: Loss, bad: float) -> None:
    scores = normal(4, 4)
    scores[1, 2] = bad
    with pytest.raises(ValueError, match=r"`scores` to be finite, got 1 of 16 .*`mask`"):
        loss(scores)


@ALL
def test_checks_of_values_can_be_skipped(loss: Loss) -> None:
    scores = normal(4, 4)
    scores[1, 2] = math.nan
    assert bool(loss(scores, validate_args=False).isnan().any())


@ALL
def test_a_mask_without_positives_is_refused_and_its_rows_named(loss: Loss) -> None:
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1, 1] = mask[3, 3] = False
    with pytest.raises(ValueError, match=r"2 of 4 rows without it: 1, 3\."):
        loss(normal(4, 4), mask=mask)


@ALL
def test_masks_of_another_kind_are_refused(loss: Loss) -> None:
    with pytest.raises(TypeError, match=r"boolean `mask`, got torch.float32"):
        loss(normal(4, 4), mask=torch.ones(4, 4))
    with pytest.raises(ValueError, match=r"`mask` on the device of `scores` \(cpu\), got meta"):
        loss(normal(4, 4), mask=torch.ones(4, 4, dtype=torch.bool, device="meta"))


def test_the_symmetric_loss_warns_once_of_a_row_without_candidates() -> None:
    mask = ~torch.eye(3, dtype=torch.bool)[1] & ~torch.eye(3, dtype=torch.bool)[:, 1:2]
    with pytest.warns(UserWarning, match="1 of 3 rows have no candidate") as caught:
        losses = symmetric_info_nce(normal(3, 3), mask=mask)
    assert len(caught) == 1
    assert losses[1] == 0


def test_a_row_whose_column_has_negatives_does_not_cost_nothing() -> None:
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = torch.tensor([False, True, False])
    assert symmetric_info_nce(normal(3, 3), mask=mask).min() > 0.0  # and there is no warning


COLUMN_WITHOUT_POSITIVE = (
    r"\(row i of column i\) of every column .*1 of 3 columns without it: 1\. .*row i and column i"
)


def test_a_column_without_its_positive_is_refused_by_the_symmetric_loss() -> None:
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    with pytest.raises(ValueError, match=COLUMN_WITHOUT_POSITIVE):  # and no row is warned of
        symmetric_info_nce(normal(3, 3), mask=mask)


@ALL
@EXAMPLES
@given(scores=matrices(), order=st.randoms(use_true_random=False))
def test_losses_follow_a_joint_permutation(loss: Loss, scores: Tensor, order: object) -> None:
    indices = list(range(len(scores)))
    order.shuffle(indices)  # type: ignore[attr-defined]
    moved = scores[indices][:, indices]
    if loss is multi_positive:  # its positives are chosen by place
        permuted = multi_positive_info_nce(moved, same_parity(scores)[indices][:, indices])
    else:
        permuted = loss(moved)
    torch.testing.assert_close(permuted, loss(scores)[indices], rtol=1e-9, atol=1e-9)


@SHIFT_FREE
@EXAMPLES
@given(scores=matrices(), shift=st.floats(-20, 20))
def test_losses_of_one_direction_ignore_a_constant_per_anchor(
    loss: Loss, scores: Tensor, shift: float
) -> None:
    constants = shift * torch.arange(len(scores))[:, None]
    torch.testing.assert_close(loss(scores + constants), loss(scores), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("loss", [info_nce, symmetric_info_nce, decoupled_info_nce])
@EXAMPLES
@given(scores=matrices(), row=st.integers(0, 4), gain=st.floats(0.01, 20))
def test_a_better_positive_costs_less_and_a_better_negative_more(
    loss: Loss, scores: Tensor, row: int, gain: float
) -> None:
    row = row % len(scores)
    better = scores.clone()
    better[row, row] += gain
    assert loss(better)[row] <= loss(scores)[row]
    worse = scores.clone()
    worse[row, row - 1] += gain
    assert loss(worse)[row] >= loss(scores)[row]


@EXAMPLES
@given(scores=matrices(), concentration=st.floats(0, 5))
def test_harder_negatives_never_cost_less(scores: Tensor, concentration: float) -> None:
    hard = hard_negative_info_nce(scores, concentration=concentration)
    assert bool((hard >= info_nce(scores) - 1e-9).all())


@EXAMPLES
@given(scores=matrices())
def test_the_bound_stays_under_its_ceiling_and_accuracy_is_a_share(scores: Tensor) -> None:
    assert info_nce_bound(scores) <= log_candidates(scores).mean() + 1e-12
    found = retrieval_accuracy(scores)
    assert bool(((found >= 0) & (found <= 1)).all())
    # as many winners as rows, however ties are shared, if each row's best were counted
    best = torch.stack([torch.roll(scores, -k, 1).diagonal() for k in range(len(scores))]).amax(0)
    assert torch.equal(found > 0, scores.diagonal() == best)


@EXAMPLES
@given(scores=matrices())
def test_soft_losses_are_at_least_the_entropy_of_their_targets(scores: Tensor) -> None:
    targets = (scores / 10).softmax(-1)
    entropy = torch.special.entr(targets).sum(-1)
    assert bool((soft_info_nce(scores, targets) >= entropy - 1e-9).all())
    own = soft_info_nce(scores / 10, targets)
    torch.testing.assert_close(own, entropy)


@EXAMPLES
@given(scores=matrices(), prior=st.floats(0.0, 0.5))
def test_debiasing_never_costs_more_where_negatives_score_below_the_positive(
    scores: Tensor, prior: float
) -> None:
    scores.diagonal().copy_(scores.amax(dim=1))
    debiased = debiased_info_nce(scores, class_prior=prior)
    assert bool((debiased <= info_nce(scores) + 1e-9).all())
