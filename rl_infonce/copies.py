"""Which observations hold the same bytes, and so are no negatives of one another."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

__all__ = ["distinct_mask", "first_copies", "row_sums"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def distinct_mask(observations: npt.NDArray[np.generic]) -> BoolArray:
    """Tell which candidates are not byte-identical copies of one another.

    Args:
        observations: [M, ...] candidates of any fixed-size dtype.

    Returns:
        [M, M] False where candidates i != j hold the same bytes; the diagonal is True.
    """
    labels = first_copies(observations)
    mask: BoolArray = labels[:, None] != labels[None, :]
    np.fill_diagonal(mask, True)
    return mask


def first_copies(observations: npt.NDArray[np.generic]) -> IntArray:
    """Label each of M observations [M, ...] by the first one that holds the same bytes."""
    rows = _byte_rows(observations)
    labels = np.arange(len(rows), dtype=np.int64)
    _, groups, sizes = np.unique(_sums_of_words(rows), return_inverse=True, return_counts=True)
    first_with: dict[bytes, int] = {}
    # Equal sums only suggest equal bytes; the dictionary compares the bytes themselves.
    for row in np.flatnonzero(sizes[groups] > 1):
        labels[row] = first_with.setdefault(rows[row].tobytes(), int(row))
    return labels


def _byte_rows(observations: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """View each observation as one row of bytes: [M, bytes]."""
    n_candidates = len(observations)
    n_bytes = observations.nbytes // max(n_candidates, 1)
    if n_bytes == 0:
        return np.zeros((n_candidates, 0), dtype=np.uint8)
    return np.ascontiguousarray(observations).reshape(-1).view(np.uint8).reshape(-1, n_bytes)


def row_sums(observations: npt.NDArray[np.generic]) -> npt.NDArray[np.uint64]:
    """Sum the bytes of each of M observations [M, ...] in weighted words, wrapping around.

    Observations of equal bytes have equal sums. Others hardly ever do, also where words have only
    changed their places.
    """
    return _sums_of_words(_byte_rows(observations))


def _sums_of_words(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Sum each row [M] in words of half a sum's width, each times a number of its place.

    It is a multilinear hash (Lemire & Kaser 2014, after Carter & Wegman 1979), with fixed weights.
    """
    word = next(size for size in (4, 2, 1) if rows.shape[1] % size == 0)
    words = rows.view(f"u{word}")
    sums: npt.NDArray[np.uint64] = np.einsum(  # makes no copy in wide words
        "ij,j->i", words, _weights(words.shape[1]), dtype=np.uint64, casting="safe"
    )
    return sums


@cache
def _weights(n: int) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(0).integers(2**64, size=n, dtype=np.uint64)
