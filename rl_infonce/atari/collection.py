"""The folder of a collection while it is written: its lock, missing shards and disk space."""

from __future__ import annotations

import errno
import logging
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from filelock import FileLock, Timeout

import rl_infonce
from rl_infonce.atari.manifest import MANIFEST, existing_shards, read_manifest, write_manifest
from rl_infonce.atari.shards import (
    check_shard_files,
    columns,
    n_bytes,
    remove_shard,
    shard_rows,
)
from rl_infonce.checks import differences

_logger = logging.getLogger(__name__)


class Collection:
    """A folder with its manifest, and the indices of the shards that it still lacks.

    No other process may write into the folder. One that holds a collection of other settings or
    another format version, a damaged shard, or shards without a manifest, raises a `ValueError`.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self.folder = folder
        self._content = columns(settings)
        self._manifest = self._read() if (folder / MANIFEST).exists() else self._new()
        finished = {shard["index"] for shard in self._manifest["shards"]}
        self.missing = [i for i in range(settings["n_shards"]) if i not in finished]
        # A killed process leaves half shards, and shards it did not list: they take space.
        for index in self.missing:
            remove_shard(folder, settings, index)

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, settings: Mapping[str, Any]) -> Iterator[Collection]:
        """Open a folder for this process alone, after waiting for any other that writes into it."""
        lock = FileLock(folder / ".lock")  # the system frees the lock of a dead process
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _logger.warning("Waiting for another process that collects into %s", folder)
            lock.acquire()
        try:
            yield cls(folder, settings)
        finally:
            lock.release()

    @property
    def n_rows_missing(self) -> int:
        """Return the number of rows of all missing shards."""
        return sum(len(shard_rows(self.settings, index)) for index in self.missing)

    def finish(self, entry: Mapping[str, Any]) -> None:
        """Add a complete shard to the manifest, given the entry that its `commit` returned."""
        shards = [*self._manifest["shards"], entry]
        self._manifest["shards"] = sorted(shards, key=lambda shard: int(shard["index"]))
        write_manifest(self.folder, self._manifest)
        self.missing.remove(entry["index"])

    def check_free_space(self) -> None:
        """Raise an `OSError` with `errno.ENOSPC` unless the missing shards fit on the disk."""
        free = shutil.disk_usage(self.folder).free
        if free < self._n_bytes_missing():
            raise self.full_disk(free)

    def full_disk(self, free: int | None = None) -> OSError:
        """Return the error that says what is kept and how much space the missing shards need."""
        n_shards = self.settings["n_shards"]
        found = "" if free is None else f", got {free:,}"
        return OSError(
            errno.ENOSPC,
            f"Expected {self._n_bytes_missing():,} bytes free for {self.folder}{found}: the disk "
            f"is full. {n_shards - len(self.missing)} of {n_shards} shards are finished and kept; "
            "free some space and collect again with the same settings",
        )

    def _n_bytes_missing(self) -> int:
        rows = (shard_rows(self.settings, index) for index in self.missing)
        return sum(n_bytes(self._content, len(shard)) for shard in rows)

    def _new(self) -> dict[str, Any]:
        if shards := sorted(path.name for path in self.folder.glob("shard_*[0-9]")):
            raise ValueError(
                f"Expected a {MANIFEST} beside the shards in {self.folder}, got {shards[0]} "
                "without one, so their settings are unknown. Put it back, or choose another folder."
            )
        versions = {
            "python": platform.python_version(),
            "rl_infonce": rl_infonce.__version__,
            "numpy": np.__version__,
            "opencv": cv2.__version__,
        }
        manifest = {"settings": self.settings, "versions": versions, "shards": []}
        write_manifest(self.folder, manifest)
        return manifest

    def _read(self) -> dict[str, Any]:
        manifest = _read_of_settings(self.folder, self.settings)
        shards = existing_shards(self.folder, manifest)
        for shard in shards:
            check_shard_files(self.folder, shard, verify=True)
        return {**manifest, "shards": shards}


def is_finished(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether a folder holds every shard, verified, without writing or waiting."""
    if not (folder / MANIFEST).exists():
        return False
    shards = existing_shards(folder, _read_of_settings(folder, settings))
    if len(shards) < settings["n_shards"]:
        return False
    for shard in shards:
        check_shard_files(folder, shard, verify=True)
    return True


def _read_of_settings(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a folder, or raise if its settings differ from these."""
    manifest = read_manifest(folder)
    if listed := differences(manifest["settings"], settings):
        raise ValueError(
            f"Expected `folder` to be new or to have the same settings, got {folder} with "
            f"{listed}. Choose another folder, or delete this one."
        )
    return manifest
