"""Handle Ctrl-C and the signals that end a job: note the first one, and obey the second."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 75
"""Exit code of a command that a signal stopped and that can continue: EX_TEMPFAIL, try later."""

_ASKING = ("SIGINT", "SIGTERM")
# Slurm announces the end of a job by the signal that it is asked for: usually SIGUSR1, with
# submitit SIGUSR2. It reaches a training twice, directly and through the process that started it.
# So does SIGHUP from a terminal that is gone, through its shell and when the shell ends.
_ANNOUNCING = ("SIGUSR1", "SIGUSR2", "SIGHUP")
_OUTPUTS = (1, 2)


@contextmanager
def stopping_signals(on_signal: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call a function at the first Ctrl-C or SIGTERM, and leave the second to the system.

    SIGUSR1, SIGUSR2 and SIGHUP also call the function, each time they come, and do not count as the
    first. Text printed after SIGHUP is dropped: the terminal is gone, and writing to it is an
    error. If SIGHUP is ignored already, as by nohup, it stays ignored. Outside the main thread,
    where Python delivers no signals, nothing changes.

    Args:
        on_signal: Function called with the signal, perhaps more than once; it must return at once,
            e.g. after setting a flag.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asking, announcing = _present(_ASKING), _present(_ANNOUNCING)
    numbers = [*asking, *(each for each in announcing if not _is_ignored_hangup(each))]
    previous = {number: signal.getsignal(number) for number in numbers}
    terminals = [each for each in _OUTPUTS if os.isatty(each)]  # unknown once they are gone

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        if number in asking:
            restore()
        if signal.Signals(number).name == "SIGHUP":
            _silence(terminals)
        on_signal(signal.Signals(number))

    for number in numbers:
        signal.signal(number, note)
    try:
        yield
    finally:
        restore()


def _is_ignored_hangup(number: signal.Signals) -> bool:
    return number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN


def _silence(descriptors: Iterable[int]) -> None:
    """Drop what is written to descriptors from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for each in descriptors:
        os.dup2(nowhere, each)
    os.close(nowhere)


def _present(names: Iterable[str]) -> list[signal.Signals]:
    """Return the signals that this system has."""
    return [getattr(signal, name) for name in names if hasattr(signal, name)]
