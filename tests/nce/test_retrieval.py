import math

import pytest
import torch

from rl_infonce.nce import retrieval_accuracy
from tests import oracles


@pytest.mark.parametrize("masked", [False, True])
def test_retrieval_accuracy_equals_loop_oracle(masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 3, (20, 4, 6), generator=generator).double()
    mask = torch.rand(20, 4, 6, generator=generator) < 0.6
    mask |= torch.eye(4, 6, dtype=torch.bool)
    expected = [
        oracles.retrieval_accuracy(matrix.tolist(), allowed.tolist() if masked else None)
        for matrix, allowed in zip(scores, mask, strict=True)
    ]
    accuracies = retrieval_accuracy(scores, mask=mask if masked else None)
    torch.testing.assert_close(accuracies, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("n_candidates", [1, 2, 10])
def test_retrieval_accuracy_collapsed_critic_scores_chance(n_candidates: int) -> None:
    accuracies = retrieval_accuracy(torch.zeros(n_candidates, n_candidates))
    torch.testing.assert_close(accuracies, torch.full((n_candidates,), 1 / n_candidates))


def test_retrieval_accuracy_ignores_masked_candidates() -> None:
    scores = torch.tensor([[1.0, 9.0, 0.0], [9.0, 1.0, 1.0]])
    mask = torch.tensor([[True, False, True], [False, True, True]])
    assert retrieval_accuracy(scores, mask=mask).tolist() == [1.0, 0.5]


def test_retrieval_accuracy_nan_positive_is_not_found() -> None:
    assert retrieval_accuracy(torch.full((1, 2), math.nan)).tolist() == [0.0]


def test_retrieval_accuracy_has_no_gradient_and_is_float32() -> None:
    accuracies = retrieval_accuracy(torch.zeros(3, 3, dtype=torch.bfloat16, requires_grad=True))
    assert accuracies.dtype == torch.float32
    assert not accuracies.requires_grad


def test_retrieval_accuracy_refuses_a_mask_without_positives() -> None:
    with pytest.raises(ValueError, match=r"got 3 of 3 rows without it"):
        retrieval_accuracy(torch.zeros(3, 3), mask=~torch.eye(3, dtype=torch.bool))


def test_a_row_without_candidates_finds_nothing() -> None:
    mask = torch.tensor([[True, True], [False, False]])
    with pytest.warns(UserWarning, match=r"1 of 2 rows have no candidate and so accuracy 0: 1\."):
        found = retrieval_accuracy(torch.eye(2), mask=mask)
    assert found.tolist() == [1.0, 0.0]
