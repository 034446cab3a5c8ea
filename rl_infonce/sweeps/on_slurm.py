"""Run the cells of a sweep as jobs of a Slurm array, through submitit."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_infonce.checks import check_count, import_extra
from rl_infonce.runs.signals import INTERRUPTED, stopping_signals
from rl_infonce.sweeps.run_cell import Job, run_job, thread_limits

_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_TO_SAVE = 60.0  # submitit asks Slurm for the signal 90 s before the end
_MOST_TIMEOUTS = "slurm_max_num_timeout"
_N_TIMEOUTS = 1000  # submitit's 3 would end a long cell, whose every session gets further
_TIMES = ("timeout_min", "slurm_timeout_min", "slurm_time")


class _Task:
    """A job that Slurm may stop and start again: it goes on from the run's last checkpoint."""

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self.job, self.environment = job, environment
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        return run_job(self.job, self.environment, self._started)

    def _started(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def checkpoint(self) -> Any:
        """Let the training save, and return what submitit submits in place of this job.

        Submitit calls it when the job is out of time or preempted, and ends this process then.
        """
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            _let_save(self._process)
        return DelayedSubmission(_Task(self.job, self.environment))


def _let_save(process: subprocess.Popen[bytes]) -> None:
    """Ask a training to save and stop, and wait for its end, at most for a minute."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _SECONDS_TO_SAVE
    while time.monotonic() < deadline and not _has_ended(process.pid):
        time.sleep(_SECONDS_BETWEEN_LOOKS / 20)


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended; `wait`, which this interrupts, is left to take note."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def run_on_slurm(
    jobs: Sequence[Job],
    *,
    folder: Path,
    n_cpus: int = 1,
    parameters: Mapping[str, Any] | None = None,
    cluster: str | None = None,
) -> Generator[tuple[str, int], None, None]:
    """Submit jobs as one array and yield each one's name and exit code when it ends.

    Signals but SIGHUP, and closing the generator, cancel those that have not ended. The folder, for
    submitit's own files, must be on a path that all nodes share. Parameters are those of submitit's
    `AutoExecutor`, e.g. {"timeout_min": 60}; "slurm_max_num_timeout" says how often a job that is
    out of time is submitted again. A cluster of None is "slurm"; "local" starts all jobs here.
    """
    check_slurm(cluster)
    import submitit

    cluster = cluster or "slurm"  # submitit would start all cells here where there is no Slurm
    given = {_MOST_TIMEOUTS: _N_TIMEOUTS, **(parameters or {})}
    check_parameters(given, cluster)
    most = {_MOST_TIMEOUTS: given.pop(_MOST_TIMEOUTS)}
    environment = thread_limits(n_cpus)
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster, **most)
        executor.update_parameters(cpus_per_task=n_cpus, **given)
        submitted = executor.submit_array([_Task(job, environment) for job in jobs])
    except (NameError, TypeError, AssertionError) as error:
        raise ValueError(
            f"Expected `--slurm` parameters as submitit takes them, got {given}: "
            f"{str(error) or type(error).__name__}"
        ) from error
    except RuntimeError as error:  # no srun, or sbatch refuses
        raise OSError(f"Expected Slurm to take the jobs, got: {error}") from error
    yield from _ends(dict(zip((job.name for job in jobs), submitted, strict=True)))


def check_slurm(cluster: str | None) -> None:
    """Raise unless jobs can be submitted from here."""
    import_extra("submitit", "slurm")
    if cluster in (None, "slurm") and shutil.which("srun") is None:
        raise OSError(
            "Expected Slurm on this machine for `--engine slurm`, got no srun in PATH. Start the "
            "sweep where jobs are submitted, with its module loaded, or take --engine local."
        )


def check_parameters(parameters: Mapping[str, Any], cluster: str | None) -> None:
    """Raise unless parameters say how long a job on Slurm may take; submitit takes 5 minutes."""
    check_count(_MOST_TIMEOUTS, parameters.get(_MOST_TIMEOUTS, _N_TIMEOUTS), at_least=0)
    if cluster in ("local", "debug") or any(parameters.get(name) for name in _TIMES):
        return
    raise ValueError(
        "Expected `--slurm` with `timeout_min`, the minutes that a job may take, got "
        f"{sorted(parameters.keys() - {_MOST_TIMEOUTS})}: submitit would ask for 5. Pass, e.g., "
        "--slurm timeout_min:240; a cell that takes longer is submitted again and goes on."
    )


def _ends(waiting: dict[str, Any]) -> Generator[tuple[str, int], None, None]:
    """Yield the name and exit code of submitted jobs when they end; cancel them when told to.

    A terminal that is gone cancels none: the jobs do not need it, and are still waited for.
    """
    cancel = functools.partial(_cancel, waiting)
    try:
        with stopping_signals(cancel):
            while waiting:
                done = [name for name, each in waiting.items() if each.done()]
                for name in done:
                    yield name, _code_of(waiting.pop(name))
                if not done:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
    except BaseException:  # nobody listens any more
        cancel(None)
        raise


def _cancel(jobs: Mapping[str, Any], given: signal.Signals | None) -> None:
    if given is None or given.name != "SIGHUP":
        for each in jobs.values():
            each.cancel()


def _code_of(job: Any) -> int:
    if job.state.upper().startswith("CANCEL"):
        return INTERRUPTED
    return 1 if job.exception() is not None else int(job.result())
