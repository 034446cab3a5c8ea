"""How many processors there are to work with."""

from __future__ import annotations

import os

__all__ = ["n_usable_cpus"]


def n_usable_cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
