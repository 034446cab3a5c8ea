"""The first Ctrl-C is noted, the second has its usual effect; announcements may come again."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

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


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_an_announcement_may_come_twice_and_is_no_first_one(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_infonce.runs.signals._OUTPUTS", ())  # pytest goes on printing
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
            os.kill(os.getpid(), number)
            assert (seen[3:], second) == ([number], []), "also after Ctrl-C"
            os.kill(os.getpid(), signal.SIGINT)
            assert second == [1]
    finally:
        for each, former in formers.items():
            signal.signal(each, former)


def test_a_hangup_that_is_ignored_stays_so() -> None:
    seen: list[signal.Signals] = []
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stopping_signals(seen.append):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)
    assert not seen


IN_A_TERMINAL = """
import fcntl, os, signal, sys, termios, time
from pathlib import Path
from rl_infonce.runs.signals import stopping_signals
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
seen = []
with stopping_signals(seen.append):
    print("ready", flush=True)
    while not seen:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGHUP)
    print("saving", flush=True)
    print("saved", file=sys.stderr, flush=True)
Path(sys.argv[1]).write_text(" ".join(each.name for each in seen))
"""


def test_a_lost_terminal_is_noted_and_printing_goes_on(tmp_path: Path) -> None:
    terminal, inside = os.openpty()
    command = [sys.executable, "-c", IN_A_TERMINAL, str(tmp_path / "seen")]
    with subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
    ) as process:
        os.close(inside)
        assert os.read(terminal, 100).strip() == b"ready"
        os.close(terminal)
        assert process.wait(timeout=60) == 0
    assert (tmp_path / "seen").read_text() == "SIGHUP SIGHUP"


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
