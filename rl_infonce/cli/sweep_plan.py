"""What a sweep is going to do and to take, before it begins."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_infonce.sweeps.grid import Cell, Grid
    from rl_infonce.sweeps.progress import CellState
    from rl_infonce.sweeps.sweep_folder import SweepFolder

_GIB = 2**30


def jobs_at_once_here(arguments: argparse.Namespace) -> int:
    """Return how many cells this machine runs at once.

    Raises:
        ValueError: If a number in the arguments is not legal; the flag is named.
    """
    from loky import cpu_count

    from rl_infonce.checks import check_number

    check_number("--n-threads", arguments.n_threads, at_least=1)
    if arguments.n_jobs is not None:
        check_number("--n-jobs", arguments.n_jobs, at_least=1)
        return int(arguments.n_jobs)
    return usable_gpus() or max(cpu_count() // arguments.n_threads, 1)


def gpus_per_cell(arguments: argparse.Namespace) -> float:
    """Return how much of a GPU a cell takes on Ray, which hides GPUs from who takes none."""
    if arguments.gpus_per_cell is not None or is_far_ray(arguments):
        return float(arguments.gpus_per_cell or 0)
    return min(usable_gpus() / jobs_at_once_here(arguments), 1)


def is_far_ray(arguments: argparse.Namespace) -> bool:
    """Return whether cells run on a Ray that is there already."""
    return arguments.engine == "ray" and arguments.address not in (None, "local")


def _jobs_at_once(arguments: argparse.Namespace, missing: Sequence[Cell]) -> int:
    """Return how many cells may run at once: on a cluster, which may be of any size, all."""
    n_jobs = jobs_at_once_here(arguments)
    on_cluster = arguments.engine == "slurm" or is_far_ray(arguments)
    return len(missing) if on_cluster else min(n_jobs, len(missing))


def usable_gpus() -> int:
    """Return how many GPUs torch sees."""
    import torch

    return torch.cuda.device_count()


def print_plan(grid: Grid, folder: SweepFolder, states: dict[str, CellState]) -> None:
    """Print every cell and where it stands."""
    from rl_infonce.report.formatting import counted
    from rl_infonce.sweeps.display import counts

    print(
        f"{counted(len(states), 'cell')} in {folder.path}: {counted(len(grid.games), 'game')} x "
        f"{counted(len(grid.algos), 'algorithm')} x {counted(len(grid.arms), 'arm')} x "
        f"{counted(len(grid.seeds), 'seed')}, {grid.n_timesteps:,} steps each; {counts(states)}"
    )
    for name, state in states.items():
        reason = f" ({state.reason})" if state.reason else ""
        print(f"  {name}: {state.status}{reason}")


def print_estimate(arguments: argparse.Namespace, grid: Grid, missing: Sequence[Cell]) -> None:
    """Try the missing cells for a moment, and print what time and disk all of them take."""
    from rl_infonce.sweeps.estimate import seconds_of_all

    if not missing:
        return
    n_jobs = _jobs_at_once(arguments, missing)
    print("Trying cells for a moment, to tell time and disk ...", flush=True)
    disk = _disk(arguments, grid, missing) / _GIB
    tried = seconds_of_all(missing, grid.n_timesteps, arguments.n_threads)
    for failed in tried.failed:
        print(f"Not tried, and not in the hours: {failed}")
    print(
        f"About {_time(tried.seconds)} of training, {_time(tried.seconds / n_jobs)} with {n_jobs} "
        "at once if they "
        f"do not slow one another down (measured here, now, on {tried.n_tried} of the cells). At "
        f"most {disk:.1f} GiB of disk. Probes and the frames they collect are not included."
    )


def _time(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def _disk(arguments: argparse.Namespace, grid: Grid, missing: Sequence[Cell]) -> int:
    from rl_infonce.sweeps.estimate import disk_of_all

    n_running = len(missing) if arguments.keep_checkpoints else _jobs_at_once(arguments, missing)
    return disk_of_all(missing, grid.n_timesteps, n_running)


def check_disk(
    arguments: argparse.Namespace, grid: Grid, missing: Sequence[Cell], folder: SweepFolder
) -> None:
    """Raise an OSError unless the missing cells have room."""
    from rl_infonce.sweeps.estimate import free_bytes

    needed, free = _disk(arguments, grid, missing), free_bytes(folder.path)
    if needed > free:
        raise OSError(
            f"Expected {needed / _GIB:.1f} GiB of room in {folder.path}, got {free / _GIB:.1f}. "
            "Make room, choose another --output, or pass --force."
        )
