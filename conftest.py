"""What every test runs under, however pytest was called."""

from __future__ import annotations

import gc
import os

# Before anything imports torch, and for the processes that tests start: two jobs with two threads
# each are slower on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Let the garbage collector forget what was imported: half a million objects, 0.3 s a look."""
    gc.collect()
    gc.freeze()
