"""A disk that is full, as far as this process can tell."""

import contextlib
import errno
from collections.abc import Iterator
from typing import NoReturn

__all__ = ["full_disk", "no_room"]


def no_room(*_given: object) -> NoReturn:
    """Refuse whatever is to be written, as the system does."""
    raise OSError(errno.ENOSPC, "No space left on device")


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
