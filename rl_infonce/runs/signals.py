"""Ctrl-C and the signals by which systems end a job: noted once, obeyed the second time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["INTERRUPTED", "stopping_signals"]

INTERRUPTED = 75
"""Exit code of a command that a signal stopped and that can go on: EX_TEMPFAIL, try later."""

# Slurm announces the end of a job by the signal it is asked for, by custom SIGUSR1.
_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


@contextmanager
def stopping_signals(on_signal: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call a function at the first Ctrl-C, SIGTERM or SIGUSR1, and leave the second to the system.

    Elsewhere than in the main thread, where Python delivers no signals, nothing changes.

    Args:
        on_signal: Called with the signal; it returns at once, e.g. after setting a flag.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        restore()
        on_signal(signal.Signals(number))

    for number in numbers:
        signal.signal(number, note)
    try:
        yield
    finally:
        restore()
