"""What every test runs under, however pytest was called."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
import time
from getpass import getuser
from pathlib import Path

import pytest

# Before anything imports torch, and for the processes that tests start: two jobs with two threads
# each are slower on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ray's sockets stand 70 letters below its folder, and a socket's path has at most 107 (macOS: 103).
LONGEST_FOR_SOCKETS = 32


def use_temporary_folders() -> None:
    """Give this session, its workers and the processes of its tests temporary folders that go.

    The folders of failed tests stay where pytest keeps them, as those of the last three sessions.
    """
    system = Path(tempfile.gettempdir())
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(system))
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    for_sockets = folder
    if len(str(folder)) > LONGEST_FOR_SOCKETS:
        for_sockets = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))
    os.environ.update(TMPDIR=str(folder), RAY_TMPDIR=str(for_sockets))
    tempfile.tempdir = str(folder)
    atexit.register(remove_temporary_folders, os.getpid(), {folder, for_sockets})


def remove_temporary_folders(owner: int, folders: set[Path]) -> None:
    """Remove the session's folders, and pytest's if no failed test is in it."""
    if os.getpid() != owner:  # a fork of the session
        return
    for folder in folders:
        for _ in range(50):  # a process that is about to end may write once more
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)
    of_pytest = Path(os.environ["PYTEST_DEBUG_TEMPROOT"], f"pytest-of-{getuser()}")
    latest = of_pytest / "pytest-current"
    if latest.is_symlink() and not latest.exists():
        latest.unlink()
    if of_pytest.is_dir() and not any(of_pytest.iterdir()):
        of_pytest.rmdir()


if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker has its controller's
    use_temporary_folders()
    # As Ctrl-C, so that a session that a time limit ends leaves nothing either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let further cases of what other tests show run also."""
    parser.addoption("--thorough", action="store_true", help="run tests marked `thorough` also")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out further cases, unless they are asked for by `--thorough` or `-m`."""
    if config.getoption("thorough") or "thorough" in config.getoption("markexpr"):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_collection_finish() -> None:
    """Let the garbage collector forget what was imported: half a million objects, 0.3 s a look."""
    gc.collect()
    gc.freeze()
