"""Observations of the same bytes, against brute force."""

import numpy as np
import numpy.typing as npt
import pytest

from rl_infonce.copies import CHUNK, BoolArray, distinct_mask, first_copies, row_sums


def test_a_dot_that_moves_over_an_image_changes_its_sum() -> None:
    images = np.zeros((1600, 40, 40), dtype=np.uint8)
    images.reshape(1600, 1600)[np.arange(1600), np.arange(1600)] = 255
    assert len({*row_sums(images).tolist()}) == 1600


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (3,), (4, 3, 3)])
def test_equal_observations_have_equal_sums(dtype: type, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    kinds: npt.NDArray[np.generic] = rng.integers(0, 256, (5, *shape)).astype(dtype)
    chosen = rng.integers(0, 5, 20)
    sums = row_sums(kinds[chosen])
    of_kinds = {int(kind): int(each) for kind, each in zip(chosen, sums, strict=True)}
    assert sums.tolist() == [of_kinds[kind] for kind in chosen]
    assert len({*of_kinds.values()}) == len({kinds[kind].tobytes() for kind in of_kinds})


def brute_force_distinct(observations: npt.NDArray[np.generic]) -> BoolArray:
    contents = [row.tobytes() for row in observations]
    return np.array(
        [[i == j or a != b for j, b in enumerate(contents)] for i, a in enumerate(contents)]
    )


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 4), (4, 3, 3)])
def test_distinct_mask_equals_brute_force(dtype: type, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for n_kinds in (1, 2, 5, 1000):
        kinds: npt.NDArray[np.generic] = rng.integers(0, 256, (n_kinds, *shape)).astype(dtype)
        observations = kinds[rng.integers(0, n_kinds, 20)]
        assert np.array_equal(distinct_mask(observations), brute_force_distinct(observations))


def test_distinct_mask_tells_equal_sums_apart() -> None:
    first = np.arange(32, dtype=np.uint8)
    swapped = np.concatenate([first[8:16], first[:8], first[16:]])  # the same words, reordered
    wrapped = first.view(np.uint64) + np.array([2**63, 2**63, 0, 0], dtype=np.uint64)
    observations = np.stack([first, swapped, first, wrapped.view(np.uint8), swapped])
    assert len(set(observations.view(np.uint64).sum(axis=1).tolist())) == 1
    assert np.argwhere(~distinct_mask(observations)).tolist() == [[0, 2], [1, 4], [2, 0], [4, 1]]


def test_distinct_mask_compares_bytes_of_any_memory_layout() -> None:
    observations = np.zeros((6, 4, 5), dtype=np.float64)
    observations[1] = -0.0  # equal as a number, other bytes
    observations[2:4] = np.nan  # unequal as numbers, the same bytes
    expected = brute_force_distinct(observations)
    assert np.array_equal(distinct_mask(observations), expected)
    strided = np.asfortranarray(observations)[::-1]
    assert np.array_equal(distinct_mask(strided), expected[::-1, ::-1])


def test_distinct_mask_of_empty_input() -> None:
    assert distinct_mask(np.zeros((0, 3), np.uint8)).shape == (0, 0)
    assert np.array_equal(distinct_mask(np.zeros((3, 0), np.uint8)), np.eye(3, dtype=np.bool_))
    assert distinct_mask(np.zeros((1, 4), np.uint8)).tolist() == [[True]]


def test_copies_are_found_in_whatever_part_they_are_read() -> None:
    kinds = np.random.default_rng(0).integers(0, 256, (2 * CHUNK, 5), dtype=np.uint8)
    chosen = np.random.default_rng(1).integers(0, len(kinds), 3 * CHUNK + 1)
    sizes = []

    def read(part: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        sizes.append(len(chosen[part]))
        return kinds[chosen[part]]

    labels = first_copies(read, len(chosen))
    assert labels.tolist() == [chosen.tolist().index(kind) for kind in chosen]
    assert max(sizes) == CHUNK
    assert len(sizes) <= 2 * 4  # a call for each row is slow where rows are looked up
