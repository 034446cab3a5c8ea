"""Rows in `.npy` files that may be from anyone, memory-mapped without parsing a header."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["npy_header", "open_rows"]

_MAGIC = b"\x93NUMPY\x01\x00"
_N_START = len(_MAGIC) + 2  # and the length of the text


def npy_header(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """Return what `np.save` writes before a contiguous array."""
    stream = io.BytesIO()
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(
        stream, {"descr": description, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def open_rows(path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the array [n, *row_shape] in a file of `np.save`, memory-mapped and read-only.

    There are as many rows as the file has bytes for, and its header must be the one of such an
    array. `np.load` would evaluate the header, believe its shape, and open zip files.

    Args:
        path: Of the file.
        dtype: Of its numbers.
        row_shape: Of a row.

    Raises:
        ValueError: If the file holds anything else; it is named.
        OSError: If it cannot be read.
    """
    dtype = np.dtype(dtype)
    with path.open("rb") as file:
        start = file.read(_N_START)
        text = file.read(int.from_bytes(start[len(_MAGIC) :], "little"))
    offset = _N_START + len(text)
    n_bytes = max(path.stat().st_size - offset, 0)
    n_rows, rest = divmod(n_bytes, max(math.prod(row_shape) * dtype.itemsize, 1))
    shape = (n_rows, *row_shape)
    # Versions of numpy differ in the blanks at the end.
    expected = npy_header(dtype, shape)[_N_START:].rstrip()
    if not start.startswith(_MAGIC) or text.rstrip() != expected or rest:
        raise ValueError(
            f"Expected {path} to hold an array of {dtype} {shape}, which is as large as the file, "
            f"got one that begins with {(start + text)[:120]!r}."
        )
    if n_rows == 0:  # nothing to map
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape)
