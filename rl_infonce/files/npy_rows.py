"""Read or map rows in `.npy` files by anyone, without parsing their headers."""

from __future__ import annotations

import io
import math
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_MAGIC = b"\x93NUMPY\x01\x00"
_N_START = len(_MAGIC) + 2  # plus the length of the text

_MOST_MAPPED = 64  # many systems grant a process 1,024 descriptors
_mapped: weakref.WeakKeyDictionary[RowsOnDisk, npt.NDArray[Any]] = weakref.WeakKeyDictionary()
_mapping = threading.Lock()


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

    The size of the file gives the number of rows, and the header must be that of such an array.
    `np.load` would evaluate the header, believe its shape, and open zip files.

    A map keeps a file descriptor, of which a process has few: use `RowsOnDisk` for many files.
    """
    offset, shape = _layout(path, np.dtype(dtype), row_shape)
    if shape[0] == 0:  # nothing to map
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape)


def read_rows(path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the array of `open_rows` in memory, read-only, and close the file."""
    offset, shape = _layout(path, np.dtype(dtype), row_shape)
    rows = np.fromfile(path, dtype, math.prod(shape), offset=offset).reshape(shape)
    rows.flags.writeable = False
    return rows


class RowsOnDisk:
    """The array of `open_rows`, mapped only when it is indexed, for any number of files.

    The last 64 that the process indexed stay mapped: mapping a file for every batch doubles the
    time that reading the batch takes. The file must stay.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...]) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        _, self.shape = _layout(path, self._dtype, row_shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        with _mapping:
            rows = _mapped.pop(self, None)
            if rows is None:
                rows = open_rows(self._path, self._dtype, self.shape[1:])
            _mapped[self] = rows  # the last entry is the latest
            if len(_mapped) > _MOST_MAPPED:
                _mapped.pop(next(iter(_mapped)))
        return np.asarray(rows[index])


def _layout(
    path: Path, dtype: np.dtype[Any], row_shape: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """Return the offset of a file's numbers and their shape; see `open_rows`."""
    with path.open("rb") as file:
        start = file.read(_N_START)
        text = file.read(int.from_bytes(start[len(_MAGIC) :], "little"))
    offset = _N_START + len(text)
    n_bytes = max(path.stat().st_size - offset, 0)
    n_rows, rest = divmod(n_bytes, max(math.prod(row_shape) * dtype.itemsize, 1))
    shape = (n_rows, *row_shape)
    # Versions of numpy differ in the number of blanks at the end.
    expected = npy_header(dtype, shape)[_N_START:].rstrip()
    if not start.startswith(_MAGIC) or text.rstrip() != expected or rest:
        raise ValueError(
            f"Expected {path} to hold an array of {dtype} {shape}, which is as large as the file, "
            f"got one that begins with {(start + text)[:120]!r}."
        )
    return offset, shape
