"""A disk that is full, as far as this process can tell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["full_disk"]


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let the system refuse all but the first bytes of any file. Needs POSIX limits."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
