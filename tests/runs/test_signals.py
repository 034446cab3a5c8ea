"""The first Ctrl-C is noted, the second has its usual effect; announcements may come again."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from rl_infonce.runs.signals import stopping_signals

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_an_announcement_may_come_twice_and_is_no_first_one(number: signal.Signals) -> None:
    seen: list[signal.Signals] = []
    second: list[int] = []
    formers = {
        each: signal.signal(each, lambda *_given: second.append(1))
        for each in (number, signal.SIGINT)
    }
    try:
        with stopping_signals(seen.append):
            for each in (number, number, signal.SIGINT):
                os.kill(os.getpid(), each)
            assert (seen, second) == ([number, number, signal.SIGINT], [])
            os.kill(os.getpid(), signal.SIGINT)
            assert second == [1]
    finally:
        for each, former in formers.items():
            signal.signal(each, former)


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
