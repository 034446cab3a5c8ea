"""Run one cell of a sweep in processes of its own, wherever an engine put the cell."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import rl_infonce
from rl_infonce.runs.signals import INTERRUPTED

_STOPPED = (130, -signal.SIGINT)  # Ctrl-C ended it at once, or before it could listen
_SOURCE = str(Path(rl_infonce.__file__).absolute().parents[1])
# `-m rl_infonce` would look for it, and for torch, in the working directory first.
_START = """
import sys
source = sys.argv.pop(1)
sys.argv[0] = "rl-infonce"
sys.path = [each for each in sys.path if each]
if source not in sys.path:
    sys.path.insert(0, source)
from rl_infonce.cli import main
sys.exit(main())
"""
_PR_SET_PDEATHSIG = 1
_LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None  # not after the fork


class Job(NamedTuple):
    """What an engine runs for a cell: arguments of `rl-infonce`, one command after the other.

    What the commands print is added to the log.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    log: Path


def run_job(
    job: Job,
    environment: Mapping[str, str],
    started: Callable[[subprocess.Popen[bytes]], object] = lambda _: None,
) -> int:
    """Run the commands of a job until one fails, and return its exit code.

    They run the code of this process, whatever lies in the working directory. Interrupted, it asks
    the training to stop and waits for its checkpoint. On Linux the commands die with this process,
    so that nothing trains on where nobody waits for it. What cannot be started has code 1. The
    environment is added to that of this process, and `started` is called with each process.
    """
    try:
        return _run_commands(job, environment, started)
    except OSError as error:  # a full disk or a limit on processes: the others may run
        print(f"rl-infonce sweep: {job.name} cannot be run: {error}", file=sys.stderr)  # noqa: T201
        return 1


def thread_limits(n_threads: int) -> dict[str, str]:
    """Return the environment in which a cell takes so many processors."""
    # MKL heeds its own limit first; loky's is for the processes that collect frames.
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
    return {name: str(n_threads) for name in names}


def _run_commands(
    job: Job,
    environment: Mapping[str, str],
    started: Callable[[subprocess.Popen[bytes]], object],
) -> int:
    job.log.parent.mkdir(exist_ok=True)  # no sweep without its folder
    for command in job.commands:
        with open(job.log, "ab", opener=_follow_no_link) as file:
            process = subprocess.Popen(
                [sys.executable, "-c", _START, _SOURCE, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                preexec_fn=None if _LIBC is None else partial(_die_with_parent, os.getpid()),
                start_new_session=True,  # Ctrl-C in a terminal is for the sweep, which passes it on
            )
            try:
                started(process)
                code = process.wait()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                code = process.wait()
        if code:
            return INTERRUPTED if code in _STOPPED else code
    return 0


def _follow_no_link(path: str, flags: int) -> int:
    # A sweep's folder may come from somebody else, with a link to a file of the user.
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _die_with_parent(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before this call
        os.kill(os.getpid(), signal.SIGKILL)
