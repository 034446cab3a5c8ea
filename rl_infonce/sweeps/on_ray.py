"""Run the cells of a sweep on a Ray cluster, or on the Ray that starts here for it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Generator, Sequence
from typing import Any

from rl_infonce.checks import import_extra, warn_user
from rl_infonce.runs.signals import INTERRUPTED, stopping_signals
from rl_infonce.sweeps.run_cell import Job, run_job, thread_limits

_SECONDS = 5.0


def run_on_ray(
    jobs: Sequence[Job],
    *,
    address: str | None = None,
    n_jobs: int | None = None,
    n_cpus: int = 1,
    n_gpus: float = 0,
    n_retries: int = 3,
) -> Generator[tuple[str, int], None, None]:
    """Run jobs as Ray tasks and yield each one's name and exit code when it ends.

    A job whose node or worker is lost is started again elsewhere, where it goes on from the run's
    last checkpoint: folders must be on a path that all nodes share, with `rl_infonce` installed.
    The address is "host:port", "ray://host:port" or "auto"; None or "local" starts Ray in this
    process, where `n_jobs` run at once, or as many as the processors take if it is None. A job
    takes `n_cpus` processors, which is also its number of threads, and `n_gpus` GPUs, e.g. 0.25.
    """
    check_address(address)
    import ray

    _connect(ray, address, n_jobs, n_cpus, n_gpus)
    task = ray.remote(num_cpus=n_cpus, num_gpus=n_gpus, max_retries=n_retries)(run_job)
    environment = thread_limits(n_cpus)
    try:
        waiting = {task.remote(job, environment): job.name for job in jobs}
        asked: set[Any] = set()

        def stop(_signal: object) -> None:
            for each in waiting.keys() - asked:  # asked again, it would not wait for its training
                asked.add(each)
                ray.cancel(each)

        with stopping_signals(stop):
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=1)
                for each in done:
                    yield waiting.pop(each), _code_of(ray, each)
    except GeneratorExit:  # nobody listens any more: trainings save before Ray ends
        stop(None)
        ray.wait(list(waiting) or [ray.put(None)], num_returns=max(len(waiting), 1))
        raise
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str | None, n_jobs: int | None, n_cpus: int, n_gpus: float) -> None:
    starts_here = address in (None, "local")
    own: dict[str, Any] = {"include_dashboard": False} if starts_here else {}
    if starts_here and n_jobs is not None:
        own["num_cpus"] = n_jobs * n_cpus
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            ignore_reinit_error=True,
            **own,
        )
    except RuntimeError as error:  # "Version mismatch"
        raise ConnectionError(f"Expected Ray at {address or 'local'}, got: {error}") from error
    try:
        _check_room(ray, n_cpus, n_gpus, may_grow=not starts_here)
    except ValueError:
        ray.shutdown()
        raise


def _check_room(ray: Any, n_cpus: int, n_gpus: float, *, may_grow: bool) -> None:
    """Warn or raise if no node has room for a job: Ray would wait for one without a word."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(each.get("CPU", 0) >= n_cpus and each.get("GPU", 0) >= n_gpus for each in nodes):
        return
    found = [f"{each.get('CPU', 0):g} and {each.get('GPU', 0):g}" for each in nodes]
    message = (
        f"Expected a node with the {n_cpus} processors and {n_gpus:g} GPUs of a job "
        f"(--n-threads, --gpus-per-cell), got nodes of {', '.join(found)}."
    )
    if not may_grow:
        raise ValueError(message)
    warn_user(f"{message} Waiting for one.")


def _code_of(ray: Any, reference: Any) -> int:
    try:
        return int(ray.get(reference))
    except ray.exceptions.TaskCancelledError:
        return INTERRUPTED
    except ray.exceptions.RayError:  # lost more often than it may be started again
        return 1


def check_address(address: str | None) -> None:
    """Raise unless a Ray answers within seconds at an address; Ray itself waits for minutes."""
    import_extra("ray", "ray")
    if address in (None, "auto", "local"):
        return
    match = re.fullmatch(r"(?:ray://)?([^:/]+):(\d{1,5})", address or "")
    if match is None:
        raise ValueError(f"Expected `--address` as host:port, got {address!r}.")
    try:
        with socket.create_connection((match[1], int(match[2])), timeout=_SECONDS) as connection:
            has_tls = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
            speaks = has_tls or _speaks_http2(connection)
    except OSError as error:
        raise ConnectionError(
            f"Expected a Ray cluster at {address}, got no answer within {_SECONDS:.0f} s: {error}. "
            "`ray start --head` prints its address."
        ) from error
    if not speaks:
        raise ConnectionError(
            f"Expected a Ray cluster at {address}, got something else that listens there. `ray "
            "start --head` prints its address; the dashboard has another one."
        )


def _speaks_http2(connection: socket.socket) -> bool:
    """Return whether a server begins as those of gRPC do, with its settings of HTTP/2."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
    answer = b""
    while len(answer) < 4:
        received = connection.recv(64)
        if not received:
            return False
        answer += received
    return answer[3] == 4
