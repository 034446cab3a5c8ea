"""The first signal is noted, the second has its usual effect."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from rl_infonce.runs.signals import stopping_signals

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_the_first_is_noted_and_the_second_has_its_effect(number: signal.Signals) -> None:
    seen: list[signal.Signals] = []
    second: list[int] = []
    former = signal.signal(number, lambda *_given: second.append(1))
    try:
        with stopping_signals(seen.append):
            os.kill(os.getpid(), number)
            assert (seen, second) == ([number], [])
            os.kill(os.getpid(), number)
            assert (seen, second) == ([number], [1])
        with stopping_signals(seen.append):
            pass
        os.kill(os.getpid(), number)
        assert (seen, second) == ([number], [1, 1])
    finally:
        signal.signal(number, former)


def test_in_another_thread_nothing_changes() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def enter() -> None:
        with stopping_signals(lambda _signal: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]
