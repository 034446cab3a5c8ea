"""Several processes fill a folder of result files, each file once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["claimed"]


@contextmanager
def claimed(path: Path, locks: Path) -> Iterator[bool]:
    """Yield whether a file is missing and no other process is making it; until the end, this is.

    Args:
        path: The file, to be written in one move.
        locks: Folder for the lock, which a dead process gives free.
    """
    lock = FileLock(locks / f"{path.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield not path.exists()
    finally:
        lock.release()
