"""Let several processes share folders: one makes each file, and one holds each folder."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_infonce.files.durable import remove_partial, replace_text


@contextmanager
def claimed(path: Path, locks: Path) -> Iterator[bool]:
    """Yield whether this process shall make a file: it is missing and no other process makes it.

    The file must be written in one move; a dead process releases its lock.
    """
    from filelock import FileLock, Timeout

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


@contextmanager
def held(folder: Path, doing: str, way_out: str = "") -> Iterator[None]:
    """Keep other processes out of a folder; the system frees the lock of a process that died.

    What such a process had written in part is removed. `doing` completes "process 7 ...", e.g.
    "trains in it", in the BlockingIOError of a process that is kept out; `way_out` is its
    advice.
    """
    from filelock import FileLock, Timeout

    lock, owner = FileLock(folder / ".lock"), folder / ".owner"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        who = owner.read_text(encoding="utf-8") if owner.exists() else "another process"
        raise BlockingIOError(
            f"Expected {folder} for this process alone, but {who.strip()} {doing}.{way_out}"
        ) from None
    except PermissionError as error:
        raise PermissionError(
            f"Expected {folder} to be a folder that can be written, got: {error.strerror}."
        ) from error
    try:
        remove_partial(folder)
        replace_text(owner, f"process {os.getpid()} on {platform.node()}\n")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
