"""Ctrl-C and the signals by which systems end a job: noted first, obeyed the second time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["INTERRUPTED", "stopping_signals"]

INTERRUPTED = 75
"""Exit code of a command that a signal stopped and that can go on: EX_TEMPFAIL, try later."""

_ASKING = ("SIGINT", "SIGTERM")
# Slurm announces the end of a job by the signal it is asked for: by custom SIGUSR1, by submitit
# SIGUSR2. It reaches a training twice, directly and through the process that started it.
_ANNOUNCING = ("SIGUSR1", "SIGUSR2")


@contextmanager
def stopping_signals(on_signal: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call a function at the first Ctrl-C or SIGTERM, and leave the second to the system.

    At SIGUSR1 and SIGUSR2 it is called, too; they may come again and are no first one. Elsewhere
    than in the main thread, where Python delivers no signals, nothing changes.

    Args:
        on_signal: Called with the signal, perhaps more than once; it returns at once, e.g. after
            setting a flag.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asking, announcing = _present(_ASKING), _present(_ANNOUNCING)
    numbers = [*asking, *announcing]
    previous = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        if number in asking:
            restore()
        on_signal(signal.Signals(number))

    for number in numbers:
        signal.signal(number, note)
    try:
        yield
    finally:
        restore()


def _present(names: Iterable[str]) -> list[signal.Signals]:
    """Return the signals that this system has."""
    return [getattr(signal, name) for name in names if hasattr(signal, name)]
