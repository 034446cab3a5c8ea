"""What many tests read and takes long to make is made once, whichever worker asks first."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of that name that all workers share, and that one of them filled.

    Workers of pytest-xdist have a base of their own each, in one of the session. A worker that
    failed left no mark, so that the next tries again, in an empty folder.
    """
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    base = factory.getbasetemp().parent if is_worker else factory.getbasetemp()
    mark = base / f"{name}.made"
    with FileLock(base / f"{name}.lock"):
        if not mark.exists():
            folder = factory.mktemp(name)
            make(folder)
            mark.write_text(str(folder))
    return Path(mark.read_text())
