"""Which observations hold the same bytes, and so are no negatives of one another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

__all__ = ["distinct_mask", "first_copies", "row_sums"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

CHUNK = 256
"""Observations that are read at a time."""


def distinct_mask(observations: npt.NDArray[np.generic]) -> BoolArray:
    """Tell which candidates are not byte-identical copies of one another.

    Args:
        observations: [M, ...] candidates of any fixed-size dtype.

    Returns:
        [M, M] False where candidates i != j hold the same bytes; the diagonal is True.
    """
    labels = first_copies(observations.__getitem__, len(observations))
    mask: BoolArray = labels[:, None] != labels[None, :]
    np.fill_diagonal(mask, True)
    return mask


def first_copies(read: Callable[[slice | IntArray], npt.NDArray[np.generic]], n: int) -> IntArray:
    """Label each of n observations by the first one that holds the same bytes.

    Args:
        read: Returns the observations [M, ...] of some rows, a slice or places [M], so that they
            need not lie in one array.
        n: How many observations there are.
    """
    labels = np.arange(n, dtype=np.int64)
    sums = np.concatenate([row_sums(read(part)) for part in _chunks(max(n, 1))])
    _, groups, sizes = np.unique(sums, return_inverse=True, return_counts=True)
    suspicious = np.flatnonzero(sizes[groups] > 1)  # equal sums only suggest equal bytes
    first_with: dict[bytes, int] = {}
    for rows in (suspicious[part] for part in _chunks(len(suspicious))):
        for row, observation in zip(rows.tolist(), read(rows), strict=True):
            digest = hashlib.sha256(observation.tobytes()).digest()
            labels[row] = first_with.setdefault(digest, row)
    return labels


def _chunks(n: int) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, n, CHUNK)]


def _byte_rows(observations: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """View each observation as one row of bytes: [M, bytes]."""
    n_candidates = len(observations)
    n_bytes = observations.nbytes // max(n_candidates, 1)
    if n_bytes == 0:
        return np.zeros((n_candidates, 0), dtype=np.uint8)
    return np.ascontiguousarray(observations).reshape(-1).view(np.uint8).reshape(-1, n_bytes)


def row_sums(observations: npt.NDArray[np.generic]) -> npt.NDArray[np.uint64]:
    """Sum each of M observations [M, ...] in words of half a sum's width, with a weight per place.

    Observations of equal bytes have equal sums. Others hardly ever do, also where words have only
    changed their places: it is a multilinear hash (Lemire & Kaser 2014, after Carter & Wegman 1979)
    with fixed weights, which wraps around.
    """
    rows = _byte_rows(observations)
    word = next(size for size in (4, 2, 1) if rows.shape[1] % size == 0)
    words = rows.view(f"u{word}")
    sums: npt.NDArray[np.uint64] = np.einsum(  # makes no copy in wide words
        "ij,j->i", words, _weights(words.shape[1]), dtype=np.uint64, casting="safe"
    )
    return sums


@cache
def _weights(n: int) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(0).integers(2**64, size=n, dtype=np.uint64)
