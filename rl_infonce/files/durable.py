"""The only module that writes what must survive: whole, on the disk, and only then visible."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

PARTIAL = ".rl_infonce-partial"
"""Ending of the names of unfinished files, which the next start removes; nobody else uses it."""


_FORMER = ".former"


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a new file and wait until it is on the disk; a failure leaves what was written."""
    with path.open("xb") as file:
        _write(file, content)
        _fsync(file.fileno())


def sync(file: BinaryIO | TextIO) -> None:
    """Wait until what was written to an open file is on the disk."""
    file.flush()
    _fsync(file.fileno())


def replace_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file in one move: a reader sees the old or the new content, also after a crash."""
    partial = _partial(path)
    partial.unlink(missing_ok=True)
    try:
        write_bytes(partial, content)
        _rename(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # the error of a full disk names no file
        raise
    sync_folder(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Write text as UTF-8 in one move; see `replace_bytes`."""
    replace_bytes(path, text.encode())


def replace_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON in one move; see `replace_bytes`."""
    replace_bytes(path, f"{json.dumps(content, indent=2, allow_nan=False)}\n".encode())


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder that gets its name if the block succeeds, and is removed otherwise."""
    partial = _partial(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        _publish_folder(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _publish_folder(partial: Path, path: Path) -> None:
    """Give a finished folder its name, instead of any former folder, which stays on failure."""
    sync_folder(partial)
    former = _partial(path.with_name(f"{path.name}{_FORMER}"))
    shutil.rmtree(former, ignore_errors=True)
    if path.exists():
        _rename(path, former)
    try:
        _rename(partial, path)
    except BaseException:
        if former.exists():
            _rename(former, path)
        raise
    shutil.rmtree(former, ignore_errors=True)
    sync_folder(path.parent)


def _partial(path: Path) -> Path:
    """Return the name of an unfinished file; each process has its own."""
    return path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")


def remove_partial(folder: Path) -> None:
    """Remove what dead writers left in a folder; links are removed, not followed.

    A former folder that a writer moved away but did not replace comes back.
    """
    for entry in sorted(folder.glob(f"*{PARTIAL}")):
        name, is_former, _ = entry.name.rpartition(f"{_FORMER}.")
        if is_former and not (folder / name).exists():
            _rename(entry, folder / name)
        elif entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's names are on the disk, except on systems that cannot do so."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # as some shared folders answer
            raise
    finally:
        os.close(descriptor)


# The three calls that a full or failing disk refuses; tests make them fail one by one.


def _write(file: Any, content: bytes | memoryview) -> None:
    file.write(content)
    file.flush()


def _fsync(descriptor: int) -> None:
    os.fsync(descriptor)


def _rename(source: Path, target: Path) -> None:
    os.replace(source, target)
