"""Shards of labelled frames: folders of plain `.npy` files, one per column.

A shard appears under its name, FOLDER/shard_00000, in one move when it is complete, and the
manifest names the size and SHA-256 of every file. Nothing is pickled, so reading runs no code.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.files.digests import difference
from rl_infonce.files.durable import sync, sync_folder
from rl_infonce.files.npy_rows import RowsOnDisk, npy_header, read_rows

VIEWS = ("screen", "agent")

AGENT_SIZE = 84  # pixels per side, Mnih et al. 2015
N_STACKED = 4

_HEADER_BYTES = 128  # size of a short header of a `.npy` file
_RAM_BYTES = 128
_CHUNK_ROWS = 32  # 1.3 MB with both views, which is still in cache when hashed and written


class Column(NamedTuple):
    """Shape [rows, *shape] and dtype of one file of a shard."""

    dtype: npt.DTypeLike
    shape: tuple[int, ...]


def columns(settings: Mapping[str, Any]) -> dict[str, Column]:
    """Return the columns of a collection's shards by name; their files are `NAME.npy`.

    A row is a state in which an action is taken: its images, RAM, lives and ids, the action, and
    the reward of that action.
    """
    height, width = settings["screen_shape"]
    images = {
        "screen": Column(np.uint8, (height, width)),
        "agent": Column(np.uint8, (AGENT_SIZE, AGENT_SIZE)),
    }
    return {view: images[view] for view in settings["views"]} | {
        "ram": Column(np.uint8, (_RAM_BYTES,)),
        "episode_ids": Column(np.int64, ()),
        "game_starts": Column(np.bool_, ()),
        "lives": Column(np.uint8, ()),
        "actions": Column(np.uint8, ()),
        "rewards": Column(np.int32, ()),
    }


def n_bytes(content: Mapping[str, Column], n_rows: int) -> int:
    """Return the size of a shard's files."""
    return sum(
        _HEADER_BYTES + n_rows * int(np.prod(shape)) * np.dtype(dtype).itemsize
        for dtype, shape in content.values()
    )


def shard_folder(folder: Path, index: int) -> Path:
    """Return the folder of a finished shard."""
    return folder / f"shard_{index:05d}"


def shard_rows(settings: Mapping[str, Any], index: int) -> range:
    """Return a shard's rows, as numbered in the collection; the first shards get the remainder."""
    quotient, remainder = divmod(settings["n_steps"], settings["n_shards"])
    start = index * quotient + min(index, remainder)
    return range(start, start + quotient + (index < remainder))


def remove_partial_shard(folder: Path, settings: Mapping[str, Any], index: int) -> None:
    """Remove what a killed process wrote of a shard; foreign files there raise an `OSError`."""
    _remove_columns(_partial_folder(folder, index), columns(settings))


def remove_shard(folder: Path, settings: Mapping[str, Any], index: int) -> None:
    """Remove a shard, finished or not; foreign files there raise an `OSError`."""
    _remove_columns(shard_folder(folder, index), columns(settings))
    remove_partial_shard(folder, settings, index)


def _partial_folder(folder: Path, index: int) -> Path:
    """Return the folder of a shard that is being written."""
    return shard_folder(folder, index).with_suffix(".partial")


def _remove_columns(shard: Path, names: Iterable[str]) -> None:
    """Remove a folder of columns, if it exists and holds nothing else."""
    if not shard.exists():
        return
    ours = {f"{name}.npy" for name in names}
    foreign = sorted({path.name for path in shard.iterdir()} - ours)
    if foreign:
        raise OSError(
            errno.ENOTEMPTY,
            f"Expected nothing but the columns of a shard in {shard}, got {foreign}. Move them "
            "away, or collect into another folder",
        )
    for name in ours:
        (shard / name).unlink(missing_ok=True)
    shard.rmdir()


class ShardWriter:
    """Write a shard row by row, under a temporary name until `commit`.

    It writes plainly, not to a memory map: a full disk must raise an `OSError` instead of killing
    the process. Fill the entry at `position` of each of the `buffers` [32, ...], then call
    `advance`.
    """

    def __init__(
        self, folder: Path, index: int, n_rows: int, content: Mapping[str, Column]
    ) -> None:
        self.index = index
        self.n_rows = n_rows
        self.buffers = {
            name: np.zeros((_CHUNK_ROWS, *shape), dtype) for name, (dtype, shape) in content.items()
        }
        self.position = 0
        self._final = shard_folder(folder, index)
        self._partial = _partial_folder(folder, index)
        self._columns = tuple(content)
        self._hashes = {name: hashlib.sha256() for name in content}
        self._files: dict[str, BinaryIO] = {}
        self._partial.mkdir()
        try:
            for name, (dtype, shape) in content.items():
                self._files[name] = (self._partial / f"{name}.npy").open("wb")
                self._write(name, npy_header(dtype, (n_rows, *shape)))
        except BaseException:
            self.discard()
            raise

    def advance(self) -> None:
        """Complete the row at `position` and go to the next one."""
        self.position += 1
        if self.position == _CHUNK_ROWS:
            self._flush()

    def commit(self) -> dict[str, Any]:
        """Move the complete shard to its name and return its entry in the manifest."""
        self._flush()
        files = {}
        for name, file in self._files.items():
            sync(file)
            files[f"{name}.npy"] = {"bytes": file.tell(), "sha256": self._hashes[name].hexdigest()}
            file.close()
        os.replace(self._partial, self._final)
        sync_folder(self._final.parent)
        return {"index": self.index, "rows": self.n_rows, "files": files}

    def discard(self) -> None:
        """Remove what was written, unless it was committed."""
        for file in self._files.values():
            with suppress(OSError):  # on a full disk, what was buffered is lost anyway
                file.close()
        _remove_columns(self._partial, self._columns)

    def _flush(self) -> None:
        for name, buffer in self.buffers.items():
            self._write(name, buffer[: self.position].reshape(-1).view(np.uint8).data)
        self.position = 0

    def _write(self, name: str, content: bytes | memoryview) -> None:
        self._files[name].write(content)
        self._hashes[name].update(content)


def check_shard_files(folder: Path, shard: Mapping[str, Any], *, verify: bool) -> None:
    """Raise unless a shard's files are those that the manifest lists.

    `verify` reads the files and compares hashes, not sizes only; the error names the file and its
    hash.
    """
    where = shard_folder(folder, shard["index"])
    for name, file in shard["files"].items():
        if found := difference(where / name, file["bytes"], file["sha256"], verify=verify):
            raise ValueError(
                f"{found} The file of a finished shard is missing, cut short, changed or from "
                f"elsewhere. Delete {where} and collect again with the same settings."
            )


def open_shard(
    folder: Path, index: int, n_rows: int, content: Mapping[str, Column]
) -> dict[str, Any]:
    """Return the columns of a shard, read-only: images on disk, all others in memory."""
    arrays = {}
    for name, (dtype, shape) in content.items():
        path = shard_folder(folder, index) / f"{name}.npy"
        array = (RowsOnDisk if name in VIEWS else read_rows)(path, dtype, shape)
        if len(array) != n_rows:
            raise ValueError(f"Expected {path} to hold {n_rows} rows, got {len(array)}.")
        arrays[name] = array
    return arrays
