"""What commands print must not end their work: readers of a pipe leave, and disks fill up."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import IO, Any, cast


class LastingOutput:
    """Standard output that goes on, unseen, where it cannot be written.

    Attributes:
        error: The first error that the stream raised; None without one.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text if that is possible, and return its length."""
        with self._noting():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what the stream holds back if that is possible."""
        with self._noting():
            self._stream.flush()

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error


@contextlib.contextmanager
def lasting_output() -> Iterator[LastingOutput]:
    """Let what is printed inside go on where it cannot be written, without a word at the end."""
    with contextlib.ExitStack() as held:
        stream = sys.stdout
        if stream is None:  # Python starts so where it is closed
            stream = held.enter_context(open(os.devnull, "w", encoding="utf-8"))
        output = LastingOutput(stream)
        try:
            with contextlib.redirect_stdout(cast(IO[str], output)):
                yield output
        finally:
            output.flush()
            if output.error is not None:  # Python would complain about what is left when it ends
                with contextlib.suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Print nothing to standard output inside."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as sentences, without the line of code from which they come."""
    shown = warnings.formatwarning
    warnings.formatwarning = lambda message, *_about, **_more: f"Warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = shown
