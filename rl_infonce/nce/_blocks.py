"""Which candidates take part for which anchor, told for any block of rows and columns."""

from __future__ import annotations

import torch
from torch import Tensor


def excluded_in_block(mask: Tensor | None, rows: slice, columns: slice) -> Tensor | None:
    """Return which candidates [columns] take no part for which anchors [rows], None if all do.

    The positive of row i, column i, takes part also in a row without candidates: alone, it costs 0.
    The mask [B, M] is True where a candidate takes part; the result has memory of its own.
    """
    if mask is None:
        return None
    excluded = ~mask[rows, columns]
    positives_in_block(excluded, rows, columns)[1].fill_(False)
    return excluded


def positives_in_block(block: Tensor, rows: slice, columns: slice) -> tuple[slice, Tensor]:
    """Find the positives (column i of row i) in a block of a larger matrix.

    Returns:
        Which i lie in the block, perhaps none, and a view of their entries.
    """
    first = max(rows.start, columns.start)
    stop = max(first, min(rows.stop, columns.stop))
    return slice(first, stop), torch.diagonal(block, offset=rows.start - columns.start)
