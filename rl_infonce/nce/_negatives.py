"""Which candidates take part for which anchor, told for any block of rows and columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_infonce.checks import check_count, check_shape


@dataclass(frozen=True)
class Negatives:
    """A mask, moments in time, or both; the positive of row i is column i and takes part.

    `mask` [B, M] is True where a candidate takes part, None for all. `moments` [M] are places on
    one line as `timeline` lays them; candidates closer than `min_gap` there take no part. None is
    no rule of time.
    """

    mask: Tensor | None = None
    moments: Tensor | None = None
    min_gap: int = 0

    def excluded(self, rows: slice, columns: slice) -> Tensor | None:
        """Return where a block [rows, columns] takes no part, in memory of its own.

        None if everything takes part.
        """
        excluded = None if self.mask is None else ~self.mask[rows, columns]
        if self.moments is not None:
            gaps = self.moments[rows, None] - self.moments[columns]
            close = gaps.abs_() < self.min_gap  # [rows, columns]
            excluded = close if excluded is None else excluded.logical_or_(close)
        if excluded is not None:
            # also in a row without candidates: alone, the positive costs 0
            positives_in_block(excluded, rows, columns)[1].fill_(False)
        return excluded

    def lone_rows(self, n_rows: int, n_columns: int, block: int) -> Tensor:
        """Return which rows [B] have no negative, looking at blocks of that side.

        Only with a mask or moments. A row without any candidate is lone as well.
        """
        lone = []
        for rows in blocks(n_rows, block):
            n_negatives: Tensor | int = -1  # the positive is not excluded
            for columns in blocks(n_columns, block):
                excluded = self.excluded(rows, columns)
                assert excluded is not None  # noqa: S101 (there is a mask, or moments)
                n_negatives = n_negatives + (~excluded).sum(dim=1)
            lone.append(torch.as_tensor(n_negatives) == 0)
        return torch.cat(lone)


def blocks(length: int, size: int) -> Iterator[slice]:
    """Cut `length` into slices of `size`, the last one shorter."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def positives_in_block(block: Tensor, rows: slice, columns: slice) -> tuple[slice, Tensor]:
    """Find the positives (column i of row i) in a block of a larger matrix.

    The slice says which i lie in the block, perhaps none; the tensor is a view of their entries.
    """
    first = max(rows.start, columns.start)
    stop = max(first, min(rows.stop, columns.stop))
    return slice(first, stop), torch.diagonal(block, offset=rows.start - columns.start)


def timeline(episodes: Tensor, times: Tensor, min_gap: int) -> tuple[Tensor, int]:
    """Lay the episodes end to end, so that one distance tells both episode and time apart.

    Moments i and j are closer than the returned gap exactly where the episode is the same and
    |times_i - times_j| < min_gap. Comparing one number per pair takes half the passes over a block
    that two would.
    """
    check_shape("episodes", episodes, ["M"])
    check_shape("times", times, [len(episodes)])
    for name, labels in (("episodes", episodes), ("times", times)):
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise TypeError(f"Expected `{name}` to hold integers, got {labels.dtype}.")
    check_count("min_gap", min_gap, at_least=0)
    names, numbers = torch.unique(episodes, return_inverse=True)  # numbers [M] from 0
    first, last = int(times.min()), int(times.max())
    gap = min(min_gap, last - first + 1)
    length = last - first + 1 + gap
    if len(names) * length >= 2**63:
        raise ValueError(
            f"Expected `times` whose range times the number of episodes fits into 64 bits, got "
            f"{len(names)} episodes and times from {first} to {last}. "
            f"Count the steps of each episode from 0."
        )
    moments = numbers * length + (times.to(torch.int64) - first)
    fits = len(names) * length < 2**31
    return moments.to(torch.int32) if fits else moments, gap
