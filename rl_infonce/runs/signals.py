"""Handle Ctrl-C and the signals that end a job: note the first one, and obey the second."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

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

    SIGUSR1, SIGUSR2 and SIGHUP also call the function, each time they come, and do not count as
    the first. Text printed after SIGHUP is dropped: the terminal is gone, and writing to it is
    an error. If SIGHUP is ignored already, as by nohup, it stays ignored. Outside the main
    thread, where Python delivers no signals, nothing changes. The function must return at once,
    e.g. after setting a flag.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = _handlers()
    terminals = [each for each in _OUTPUTS if os.isatty(each)]  # unknown once they are gone

    def note(number: int, _frame: FrameType | None) -> None:
        noted = signal.Signals(number)
        if noted.name in _ASKING:
            _restore({each: previous[each] for each in previous if each.name in _ASKING})
        if noted.name == "SIGHUP":
            _silence(terminals)
        on_signal(noted)

    for number in previous:
        signal.signal(number, note)
    try:
        yield
    finally:
        _restore(previous)


def _handlers() -> dict[signal.Signals, Any]:
    """Return the handlers of the signals that this system has, without an ignored SIGHUP's."""
    names = [name for name in (*_ASKING, *_ANNOUNCING) if hasattr(signal, name)]
    found = {name: signal.getsignal(getattr(signal, name)) for name in names}
    if found.get("SIGHUP") is signal.SIG_IGN:
        del found["SIGHUP"]
    return {getattr(signal, name): handler for name, handler in found.items()}


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _silence(descriptors: Iterable[int]) -> None:
    """Drop what is written to descriptors from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for each in descriptors:
        os.dup2(nowhere, each)
    os.close(nowhere)
