"""Wait for what another process or thread does."""

import subprocess
import time
from collections.abc import Callable
from typing import Any


def wait_until(
    is_so: Callable[[], bool], process: subprocess.Popen[Any] | None = None, seconds: float = 120
) -> None:
    """Wait until something is so, and fail where a process that shall go on ends before."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
