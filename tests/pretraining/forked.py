"""Ranks that one helper process forks, which has imported torch once for all of them.

Importing is most of what a small rank costs. The helper reads what to run from its standard input,
a line of JSON each, and answers with the exit codes:

python -m tests.pretraining.forked
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",  # a process of several threads cannot be forked
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "ignore",
}
MOST_SECONDS = 300


class Helper:
    """The process that forks."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.pretraining.forked"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, **pipes)

    def run(self, script: str, n_ranks: int, *arguments: object) -> list[int]:
        """Run as many ranks of a script to their end and return their exit codes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        ranks = [
            {**meeting, "WORLD_SIZE": str(n_ranks), "RANK": str(rank)} for rank in range(n_ranks)
        ]
        task = {"script": script, "arguments": [str(each) for each in arguments], "ranks": ranks}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=30)


def serve() -> None:
    """Run what standard input asks for until it ends; in a rank, return once it is done."""
    import torch._dynamo  # noqa: F401  (which the first optimizer would import)

    from tests.experiments.loading import load
    from tests.pretraining import failing_rank, killed_rank

    scripts = {
        "distributed_rank": load("distributed_rank.py").main,
        "failing_rank": lambda: failing_rank.main(Path(sys.argv[1]), sys.argv[2]),
        "killed_rank": killed_rank.main,
    }
    while line := sys.stdin.readline():
        task = json.loads(line)
        pids = []
        for environment in task["ranks"]:
            pid = os.fork()
            if pid == 0:
                os.dup2(2, 1)  # answers are the helper's
                os.environ.update(environment)
                sys.argv[1:] = task["arguments"]
                scripts[task["script"]]()
                return  # and end as any process does
            pids.append(pid)
        sys.stdout.write(json.dumps(exit_codes(pids)) + "\n")
        sys.stdout.flush()


def exit_codes(pids: Sequence[int]) -> list[int]:
    """Wait for processes, and kill those that take too long."""
    last = time.monotonic() + MOST_SECONDS
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        time.sleep(0.01)
        for pid in [each for each in pids if each not in codes]:
            if time.monotonic() > last:
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    serve()
