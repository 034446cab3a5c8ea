"""Run the cells of a sweep on this machine."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from rl_infonce.runs.signals import INTERRUPTED, stopping_signals
from rl_infonce.sweeps.run_cell import Job, run_job, thread_limits


def run_locally(
    jobs: Sequence[Job], *, n_jobs: int, n_gpus: int = 0, n_threads: int = 1
) -> Generator[tuple[str, int], None, None]:
    """Run jobs, some at once, and yield each one's name and exit code when it ends.

    The first signal (see `stopping_signals`) asks the trainings to save and stop, and starts no
    more; the second Ctrl-C kills them. Closing the generator also asks them, and waits for them.
    GPUs are dealt to the processes in turn, those of CUDA_VISIBLE_DEVICES if it is set; 0 leaves
    the choice to torch.
    """
    pool = _Pool(n_jobs, n_gpus, n_threads)
    with ThreadPoolExecutor(n_jobs) as threads, stopping_signals(pool.stop):
        waiting: dict[Future[int], str] = {threads.submit(pool.run, job): job.name for job in jobs}
        try:
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield waiting.pop(future), future.result()
        except KeyboardInterrupt:  # the second Ctrl-C
            pool.kill()
            raise
        except BaseException:  # nobody listens any more, e.g. behind a closed pipe
            pool.stop()
            raise


class _Pool:
    """The processes that run, and the places they may take."""

    def __init__(self, n_jobs: int, n_gpus: int, n_threads: int) -> None:
        self._places: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(n_jobs):
            self._places.put(place)
        self._gpus, self._n_threads = _gpus(n_gpus), n_threads
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._is_stopping = False

    def run(self, job: Job) -> int:
        """Run a job in a free place, unless the pool stops."""
        if self._is_stopping:
            return INTERRUPTED
        place = self._places.get()
        environment = thread_limits(self._n_threads)
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[place % len(self._gpus)]

        def started(process: subprocess.Popen[bytes]) -> None:
            self._processes[place] = process
            if self._is_stopping:
                process.send_signal(signal.SIGINT)

        try:
            return run_job(job, environment, started)
        finally:
            self._processes.pop(place, None)
            self._places.put(place)

    def stop(self, _signal: signal.Signals | None = None) -> None:
        """Ask every training to save and stop, but once: a second signal would end it at once."""
        if self._is_stopping:
            return
        self._is_stopping = True
        for process in list(self._processes.values()):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End every training at once."""
        self._is_stopping = True
        for process in list(self._processes.values()):
            process.kill()


def _gpus(n_gpus: int) -> list[str]:
    """Return the names of GPUs to deal: those this process was given, or all by number."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    return (names or [str(index) for index in range(n_gpus)])[:n_gpus]
