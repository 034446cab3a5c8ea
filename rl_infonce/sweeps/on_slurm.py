"""Run the cells of a sweep as jobs of a Slurm array, through submitit."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_infonce.runs.signals import INTERRUPTED, stopping_signals
from rl_infonce.sweeps.run_cell import Job, run_job

__all__ = ["run_on_slurm"]

_SECONDS_BETWEEN_LOOKS = 2.0


class _Task:
    """A job that Slurm may stop and start again: it goes on from the run's last checkpoint."""

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self.job, self.environment = job, environment

    def __call__(self) -> int:
        return run_job(self.job, self.environment)

    def checkpoint(self) -> Any:
        """Return what submitit submits in place of a job that is out of time or preempted."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(_Task(self.job, self.environment))


def run_on_slurm(
    jobs: Sequence[Job],
    *,
    folder: Path,
    n_cpus: int = 1,
    parameters: Mapping[str, Any] | None = None,
    cluster: str | None = None,
) -> Generator[tuple[str, int], None, None]:
    """Submit jobs as one array and yield each one's name and exit code when it ends.

    Args:
        jobs: In the order of the array.
        folder: For submitit's own files, on a path that all nodes share.
        n_cpus: Processors of a job, also its number of threads.
        parameters: Of submitit's `AutoExecutor`, e.g. {"timeout_min": 60, "slurm_partition": "x"}.
        cluster: "slurm", or "local" for processes here; None takes Slurm where there is one.

    Raises:
        ModuleNotFoundError: If submitit is not installed.
        ValueError: If submitit does not know a parameter.
    """
    try:
        import submitit
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'Expected submitit for `--engine slurm`; pip install "rl-infonce[slurm]".'
        ) from None
    executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    try:
        executor.update_parameters(cpus_per_task=n_cpus, **(parameters or {}))
    except (NameError, TypeError) as error:
        raise ValueError(f"Expected `--slurm` parameters of submitit, got: {error}") from error
    environment = {"OMP_NUM_THREADS": str(n_cpus)}
    submitted = executor.submit_array([_Task(job, environment) for job in jobs])
    waiting = dict(zip((job.name for job in jobs), submitted, strict=True))

    def stop(_signal: object) -> None:
        for each in waiting.values():
            each.cancel()

    with stopping_signals(stop):
        while waiting:
            done = [name for name, each in waiting.items() if each.done()]
            for name in done:
                yield name, _code_of(waiting.pop(name))
            if not done:
                time.sleep(_SECONDS_BETWEEN_LOOKS)


def _code_of(job: Any) -> int:
    if job.state.upper().startswith("CANCEL"):
        return INTERRUPTED
    return 1 if job.exception() is not None else int(job.result())
