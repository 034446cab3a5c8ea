import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rl_infonce import nce
from rl_infonce.nce import info_nce, symmetric_info_nce
from tests import oracles
from tests.draws import normal, random_mask

Loss = Callable[..., Tensor]
BOTH = pytest.mark.parametrize("loss", [info_nce, symmetric_info_nce])

# exp(scores) with row sums 4, 8, 10 and column sums 8, 5, 9
ASYMMETRIC = torch.tensor([[1, 2, 1], [3, 2, 3], [4, 1, 5]], dtype=torch.float64).log()
# without entries (0, 1) and (2, 0): row sums 2, 8, 6 and column sums 4, 3, 9
HOLES = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])


def random_scores(*shape: int) -> Tensor:
    return 2.0 * normal(*shape)


@pytest.mark.parametrize(
    ("loss", "scores", "mask", "expected"),
    [
        (info_nce, ASYMMETRIC, None, [4, 4, 2]),
        (info_nce, ASYMMETRIC.T, None, [8, 5 / 2, 9 / 5]),
        (info_nce, ASYMMETRIC, HOLES, [2, 4, 6 / 5]),
        (symmetric_info_nce, ASYMMETRIC, None, [(4 * 8) ** 0.5, 10**0.5, (2 * 9 / 5) ** 0.5]),
        (symmetric_info_nce, ASYMMETRIC, HOLES, [8**0.5, 6**0.5, (6 / 5 * 9 / 5) ** 0.5]),
    ],
)
def test_losses_follow_rows_or_both_directions_of_an_example_by_hand(
    loss: Loss, scores: Tensor, mask: Tensor | None, expected: list[float]
) -> None:
    by_hand = torch.tensor(expected, dtype=torch.float64).log()
    torch.testing.assert_close(loss(scores, mask=mask), by_hand)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("info_nce", shape) for shape in ((1, 1), (1, 4), (3, 3), (4, 7))]
    + [("symmetric_info_nce", (n, n)) for n in (1, 2, 5)],
)
def test_losses_equal_loop_oracles(name: str, shape: tuple[int, int], masked: bool) -> None:
    scores = random_scores(*shape)
    mask = random_mask(*shape) if masked else None
    loss, oracle = getattr(nce, name), getattr(oracles, name)
    expected = oracle(scores.tolist(), None if mask is None else mask.tolist())
    losses = loss(scores, mask=mask, validate_args=False)  # which would warn of a lone positive
    assert losses.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_nt_xent_is_info_nce_of_both_views_as_the_page_has_it() -> None:
    n, temperature = 4, 0.5
    a, b = views = torch.nn.functional.normalize(normal(2, n, 3), dim=-1)
    scores = torch.cat([a, b]) @ torch.cat([b, a]).T / temperature
    mask = ~torch.eye(2 * n, dtype=torch.bool).roll(n, 1)
    expected = oracles.nt_xent(views.transpose(0, 1).reshape(2 * n, 3).tolist(), temperature)
    assert info_nce(scores, mask=mask).mean().item() == pytest.approx(expected)


@BOTH
def test_losses_broadcast_the_mask(loss: Loss) -> None:
    scores, mask = random_scores(2, 4, 4), random_mask(4, 4)
    expected = torch.stack([loss(matrix, mask=mask) for matrix in scores])
    torch.testing.assert_close(loss(scores, mask=mask), expected)


@BOTH
@pytest.mark.parametrize("temperature", [1.0, 0.07, 0.02, 0.005])
def test_losses_perfect_alignment_has_closed_form(loss: Loss, temperature: float) -> None:
    scores = torch.eye(6, dtype=torch.float64) / temperature
    expected = math.log1p(5 * math.exp(-1 / temperature))
    assert loss(scores).tolist() == pytest.approx([expected] * 6, rel=1e-9, abs=1e-15)


@BOTH
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e4), (torch.float16, 6e4)])
def test_losses_extreme_scores_stay_exact(loss: Loss, dtype: torch.dtype, size: float) -> None:
    worst = torch.tensor([[-size, size], [size, -size]], dtype=dtype, requires_grad=True)
    losses = loss(worst)
    (gradient,) = torch.autograd.grad(losses.sum(), worst)
    assert losses.tolist() == [2 * size, 2 * size]
    assert gradient.tolist() == [[-1.0, 1.0], [1.0, -1.0]]
    assert loss(-worst).tolist() == [0.0, 0.0]
    alone = torch.eye(2, dtype=torch.bool)
    assert loss(-worst, mask=alone, validate_args=False).tolist() == [0.0, 0.0]


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_compute_half_precision_scores_in_float32(loss: Loss, dtype: torch.dtype) -> None:
    scores, mask = random_scores(8, 8).to(dtype), random_mask(8, 8)
    assert loss(scores, mask=mask).dtype == torch.float32
    assert torch.equal(loss(scores, mask=mask), loss(scores.float(), mask=mask))


@BOTH
@pytest.mark.parametrize("shape", [(3, 2), (1, 2, 2), (5, 2, 2)])
def test_losses_refuse_a_mask_of_another_shape(loss: Loss, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"`mask` broadcastable to `scores` \(2, 2\), got \("):
        loss(torch.zeros(2, 2), mask=torch.ones(shape, dtype=torch.bool))


SQUARE = r"square `scores` \[\.\.\., B, B\], got \(2, 3\)"


@pytest.mark.parametrize(
    ("losses", "scores", "error", "message"),
    [
        ("both", torch.zeros(3), ValueError, r"`scores` of shape \[\.\.\., B, M\], got \(3,\)"),
        ("both", torch.eye(2).long(), TypeError, "`scores` to be floating point, got torch.int64"),
        ("info_nce", torch.zeros(3, 2), ValueError, r"1 <= B <= M, got \("),
        ("info_nce", torch.zeros(0, 2), ValueError, r"1 <= B <= M, got \("),
        ("info_nce", torch.zeros(4, 0, 0), ValueError, r"1 <= B <= M, got \("),
        ("symmetric_info_nce", torch.zeros(2, 3), ValueError, SQUARE),
    ],
)
def test_losses_refuse_scores_that_are_no_matrices_with_positives(
    losses: str, scores: Tensor, error: type[Exception], message: str
) -> None:
    for name in ("info_nce", "symmetric_info_nce") if losses == "both" else (losses,):
        with pytest.raises(error, match=message):
            getattr(nce, name)(scores)
