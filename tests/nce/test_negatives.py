import pytest
import torch

from rl_infonce.nce._negatives import Negatives, positives_in_block

SLICES = [slice(0, 2), slice(1, 4), slice(2, 7), slice(5, 6)]


@pytest.mark.parametrize("rows", SLICES, ids=str)
@pytest.mark.parametrize("columns", [*SLICES, slice(6, 9)], ids=str)
def test_positives_in_block_finds_them_in_any_block(rows: slice, columns: slice) -> None:
    matrix = torch.zeros(7, 9)
    part, positives = positives_in_block(matrix[rows, columns], rows, columns)
    positives.fill_(1.0)
    inside = [i for i in range(7) if i in range(9)[rows] and i in range(9)[columns]]
    assert list(range(9)[part]) == inside
    assert [tuple(place) for place in matrix.nonzero().tolist()] == [(i, i) for i in inside]


@pytest.mark.parametrize("rows", SLICES, ids=str)
@pytest.mark.parametrize("columns", [*SLICES, slice(6, 9)], ids=str)
def test_negatives_of_a_block_are_a_block_of_all(rows: slice, columns: slice) -> None:
    mask = torch.ones(7, 9, dtype=torch.bool).triu(-2)
    negatives = Negatives(mask, torch.tensor([0, 1, 9, 2, 8, 0, 4, 1, 9]), min_gap=2)
    everything = negatives.excluded(slice(0, 7), slice(0, 9))
    block = negatives.excluded(rows, columns)
    assert everything is not None
    assert block is not None
    assert torch.equal(block, everything[rows, columns])
    assert torch.equal(mask, torch.ones(7, 9, dtype=torch.bool).triu(-2))
