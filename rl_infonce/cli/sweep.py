"""`rl-infonce sweep`: trainings of a whole grid, here or on a cluster."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.checks import check_number
from rl_infonce.cli.sweep_plan import (
    check_disk,
    gpus_per_cell,
    is_far_ray,
    jobs_at_once_here,
    print_estimate,
    print_plan,
    usable_gpus,
)
from rl_infonce.runs.signals import INTERRUPTED

if TYPE_CHECKING:
    from rl_infonce.sweeps.grid import Cell, Grid
    from rl_infonce.sweeps.progress import CellState
    from rl_infonce.sweeps.sweep_folder import SweepFolder

_ENGINES_OF = {
    "n_jobs": ("local", "ray"),  # a Ray that starts here
    "address": ("ray",),
    "gpus_per_cell": ("ray",),
    "retries": ("ray",),
    "slurm": ("slurm",),
}
_REFRESHES_PER_SECOND = 0.5
_FAILED_AT_FIRST = 3  # trials, before a fault is taken for one of the machine and not of settings


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `sweep` and its flags."""
    parser = subparsers.add_parser(
        "sweep",
        help="train a grid of games, algorithms, arms and seeds",
        description="Train games x algorithms x arms x seeds of a TOML grid. Every cell is a run "
        "directory that can be killed and goes on; run the command again, or --resume, and only "
        "what is missing is trained. Failed cells are named at the end and stop nobody else.",
    )
    add = parser.add_argument
    add("grid", nargs="?", type=Path, metavar="GRID.toml", help="see README, Sweeps")
    add("-o", "--output", type=Path, metavar="DIR", help="folder (sweeps/NAME of the grid)")
    add("--resume", type=Path, metavar="DIR", help="go on with the sweep in this folder")
    add(
        "--dry-run",
        action="store_true",
        help="print the plan, try cells for a moment to tell time and disk, and stop",
    )
    add("--engine", choices=("local", "ray", "slurm"), default="local", help="what runs the cells")
    add("--n-jobs", type=int, metavar="N", help="here: cells at once (GPUs, else processors)")
    add("--n-threads", type=int, default=1, metavar="N", help="processors of each cell (1)")
    add("--address", metavar="HOST:PORT", help="ray: of the cluster (one that starts here)")
    add(
        "--gpus-per-cell",
        type=float,
        metavar="X",
        help="ray: e.g. 0.25 (here: all GPUs by --n-jobs, at most 1; on a cluster: 0)",
    )
    add("--retries", type=int, default=3, metavar="N", help="ray: new starts on lost nodes (3)")
    add(
        "--slurm",
        nargs="+",
        default=(),
        metavar="NAME:VALUE",
        help="slurm: of submitit's AutoExecutor, e.g. timeout_min:240 (must be given) "
        "slurm_partition:gpu",
    )
    add("--optimize", action="store_true", help="search the settings of the grid's [study]")
    add("--keep-checkpoints", action="store_true", help="of finished cells, too")
    add("--mixed-versions", action="store_true", help="go on with other versions of packages")
    add("--force", action="store_true", help="although the disk may get full")
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing of a sweep and return the exit code.

    0: every cell is done. 1: some failed; they are named. 75: stopped by a signal; trainings have
    saved. 2: the grid or the folder cannot be used. Where a file, or the output behind a pipe,
    cannot be written while cells run, trainings save, too, and the code is 1.
    """
    try:
        _check_engine(arguments)
        grid, content, folder = _what(arguments)
        planned = _trials(grid, folder) if arguments.optimize else grid
        cells = planned.cells()
        states = folder.states(planned)
        missing = _to_train(cells, states)
        if arguments.dry_run:
            _check_folder(arguments, grid, planned, folder)
            print_plan(planned, folder, states)
            print_estimate(arguments, planned, missing)
            return 0
        with contextlib.ExitStack() as held:
            held.enter_context(folder.held())
            _check_folder(arguments, grid, planned, folder)
            if not arguments.keep_checkpoints:
                _clear(cells, states, folder)
            if not arguments.force and missing:
                check_disk(arguments, planned, missing, folder)
            if missing:
                _check_cluster(arguments)
            folder.adopt(grid, content)
            if arguments.optimize:
                folder.begin_session(arguments.engine, shlex.join(sys.argv))
                return _guarded(lambda: _optimize(arguments, grid, folder))
            engine = _engine(arguments, grid, missing, folder)
            folder.begin_session(arguments.engine, shlex.join(sys.argv))
            return _guarded(lambda: _train(arguments, engine, grid, folder, states))
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        arguments.usage_error(str(error))
    return 2


def _to_train(cells: Sequence[Cell], states: dict[str, CellState]) -> list[Cell]:
    """Return the cells that are not done; a folder with something else in it stays as it is."""
    return [
        cell
        for cell in cells
        if states[cell.name].status != "done" and not states[cell.name].reason
    ]


def _clear(cells: Sequence[Cell], states: dict[str, CellState], folder: SweepFolder) -> None:
    """Remove checkpoints of cells that were done when nobody was there to do so."""
    from rl_infonce.sweeps.sweep_folder import remove_checkpoints

    for cell in cells:
        if states[cell.name].status == "done":
            remove_checkpoints(folder.run_dir(cell))


def _check_engine(arguments: argparse.Namespace) -> None:
    """Raise if a flag was given that the engine would not heed, or one that it needs was not."""
    for name, engines in _ENGINES_OF.items():
        if name in arguments.given and arguments.engine not in engines:
            raise ValueError(
                f"Expected --{name.replace('_', '-')} with --engine {' or '.join(engines)} alone, "
                f"got --engine {arguments.engine}. Leave it out."
            )
    if "n_jobs" in arguments.given and is_far_ray(arguments):
        raise ValueError(
            "Expected --n-jobs with a Ray that starts here, got --address: the cluster's own "
            "processors and GPUs say how many run at once. Leave it out."
        )
    check_number("--retries", arguments.retries, at_least=0)
    if arguments.gpus_per_cell is not None:
        check_number("--gpus-per-cell", arguments.gpus_per_cell, at_least=0)
    if arguments.engine == "slurm":
        from rl_infonce.sweeps.on_slurm import check_parameters

        check_parameters(*_slurm(arguments))


def _check_cluster(arguments: argparse.Namespace) -> None:
    """Raise if cells cannot be handed over, before the folder becomes that of this grid."""
    if arguments.engine == "ray":
        from rl_infonce.sweeps.on_ray import check_address

        check_address(arguments.address)
    if arguments.engine == "slurm":
        from rl_infonce.sweeps.on_slurm import check_slurm

        check_slurm(_slurm(arguments)[1])


def _slurm(arguments: argparse.Namespace) -> tuple[dict[str, Any], str | None]:
    """Return the parameters of submitit and the cluster, None if it was left open."""
    from rl_infonce.hyperparameters import parse_hyperparameters

    parameters = parse_hyperparameters(arguments.slurm, flag="--slurm", plain_text=True)
    return parameters, parameters.pop("cluster", None)


def _check_folder(
    arguments: argparse.Namespace, grid: Grid, planned: Grid, folder: SweepFolder
) -> None:
    folder.check_cells(grid)
    if not arguments.mixed_versions:
        folder.check_versions(planned)


def _trials(grid: Grid, folder: SweepFolder) -> Grid:
    from rl_infonce.sweeps.study import trials_grid

    return trials_grid(grid, folder.begun())


def _guarded(work: Callable[[], int]) -> int:
    """Return the exit code of work, 1 after an error of files: that is no wrong usage."""
    try:
        return work()
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            _drop_output()
        with contextlib.suppress(OSError):
            print(f"rl-infonce sweep: {error}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Let what is still to be printed go nowhere, or Python complains of it when it ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _train(
    arguments: argparse.Namespace,
    engine: Generator[tuple[str, int], None, None],
    grid: Grid,
    folder: SweepFolder,
    states: dict[str, CellState],
) -> int:
    """Run the cells of a plan and return the exit code."""
    print_plan(grid, folder, states)
    return _ending(_work(arguments, engine, grid, folder), grid, folder)


def _what(arguments: argparse.Namespace) -> tuple[Grid, bytes, SweepFolder]:
    """Return the grid, the content of its file, and the folder."""
    from rl_infonce.sweeps.grid import parse_grid
    from rl_infonce.sweeps.sweep_folder import SweepFolder

    if (arguments.grid is None) == (arguments.resume is None):
        raise ValueError("Expected a grid, or --resume with the folder of a sweep.")
    if arguments.resume is not None:
        if arguments.output is not None:
            raise ValueError("Expected --resume without --output: it names the sweep's folder.")
        folder = SweepFolder(arguments.resume)
        path = folder.grid_path()
    else:
        path = arguments.grid
        if not path.exists():
            raise FileNotFoundError(
                f"Expected a grid at {path}, got no such file. README, Sweeps, shows one."
            )
        folder = SweepFolder(arguments.output or Path("sweeps") / path.stem)
    content = path.read_bytes()
    return parse_grid(content, path, check_files=True), content, folder


def _engine(
    arguments: argparse.Namespace, grid: Grid, missing: Sequence[Cell], folder: SweepFolder
) -> Generator[tuple[str, int], None, None]:
    """Return a generator of the names and exit codes of cells that end."""
    mixed = arguments.mixed_versions
    jobs = [folder.job(cell, grid, mixed_versions=mixed) for cell in missing]
    if not jobs:
        return _no_engine()
    if arguments.engine == "ray":
        from rl_infonce.sweeps.on_ray import run_on_ray

        return run_on_ray(
            jobs,
            address=arguments.address,
            n_jobs=None if is_far_ray(arguments) else jobs_at_once_here(arguments),
            n_cpus=arguments.n_threads,
            n_gpus=gpus_per_cell(arguments),
            n_retries=arguments.retries,
        )
    if arguments.engine == "slurm":
        from rl_infonce.sweeps.on_slurm import run_on_slurm

        parameters, cluster = _slurm(arguments)
        return run_on_slurm(
            jobs,
            folder=folder.path / "slurm",
            n_cpus=arguments.n_threads,
            parameters=parameters,
            cluster=cluster,
        )
    from rl_infonce.sweeps.local import run_locally

    n_jobs = jobs_at_once_here(arguments)
    return run_locally(jobs, n_jobs=n_jobs, n_gpus=usable_gpus(), n_threads=arguments.n_threads)


def _no_engine() -> Generator[tuple[str, int], None, None]:
    yield from ()


def _work(
    arguments: argparse.Namespace,
    engine: Generator[tuple[str, int], None, None],
    grid: Grid,
    folder: SweepFolder,
) -> dict[str, int]:
    """Let the engine work, show how far it is, and return the exit codes by cell.

    Raises:
        OSError: If the output cannot be written, after the trainings have saved and stopped.
    """
    from rich.live import Live

    from rl_infonce.sweeps.display import live_table
    from rl_infonce.sweeps.progress import cell_state
    from rl_infonce.sweeps.sweep_folder import remove_checkpoints

    cells = {cell.name: cell for cell in grid.cells()}
    codes: dict[str, int] = {}
    with contextlib.ExitStack() as shown, contextlib.closing(engine):
        if sys.stdout.isatty():
            shown.enter_context(
                Live(
                    get_renderable=lambda: live_table(folder.states(grid), grid.n_timesteps),
                    refresh_per_second=_REFRESHES_PER_SECOND,
                )
            )
        for name, code in engine:
            codes[name] = code
            run_dir = folder.run_dir(cells[name])
            state = cell_state(cells[name], grid, run_dir)
            print(f"{name}: {_words(state, code, run_dir)}", flush=True)
            if state.status == "done" and not arguments.keep_checkpoints:
                remove_checkpoints(run_dir)
    return codes


def _optimize(arguments: argparse.Namespace, grid: Grid, folder: SweepFolder) -> int:
    """Search the grid's study and return the exit code."""
    from rl_infonce.atari.human_scores import human_scores
    from rl_infonce.sweeps.study import best_trial, run_study

    codes: dict[str, int] = {}
    ended: dict[str, set[str]] = {}

    def train(cells: Sequence[Cell], own: Grid) -> bool:
        states = folder.states(own)
        left = _to_train(cells, states)
        codes.update(_work(arguments, _engine(arguments, own, left, folder), own, folder))
        ended[own.arms[0]] = {state.status for state in folder.states(own).values()}
        return INTERRUPTED not in codes.values()

    scales = human_scores()
    if not set(grid.games) <= scales.keys():
        scales = {}
    _print_measure(grid, is_scaled=bool(scales))
    n_failed = 0
    for name, settings, value in run_study(folder, grid, train, scales or None):
        print(f"{name}: {_outcome(value, ended[name])} with {dict(settings)}", flush=True)
        n_failed += value is None
        if n_failed == _FAILED_AT_FIRST and best_trial(folder) is None:
            print(
                f"rl-infonce sweep: the study stops, as {n_failed} trials failed and none has a "
                "value. Mend what their output.log says, and run the command again: with more "
                "n_trials, or another --output, if none is left.",
                file=sys.stderr,
            )
            break
    best = best_trial(folder)
    if best is not None:
        print(f"Best of all: {best[0]}, {best[2]:+.4f} with {dict(best[1])}")
    if INTERRUPTED in codes.values():
        return INTERRUPTED
    if best is None:
        print("rl-infonce sweep: no trial of the study has a value", file=sys.stderr)
    return 1 if n_failed or best is None else 0


def _print_measure(grid: Grid, *, is_scaled: bool) -> None:
    """Print what the values of a study's trials are."""
    what = {"area": "mean return over the budget", "final": "mean return of its last tenth"}
    print(
        f"Trials' values are the {what[str((grid.study or {}).get('measure'))]}, mean over the grid"
        + (", where 0 is a random agent and 1 a human." if is_scaled else ".")
    )


def _outcome(value: float | None, ended: set[str]) -> str:
    """Return a trial's value, or why it has none, from how its cells ended."""
    if value is not None:
        return f"{value:+.4f}"
    if ended == {"done"}:
        return "no value, as no episode ended in time in a run of it (raise n_timesteps),"
    return "failed"


def _words(state: CellState, code: int, run_dir: Path) -> str:
    if code == INTERRUPTED:
        return f"stopped at step {state.step:,}"
    if state.reason:
        return f"failed: {state.reason}"
    if code or state.status != "done":
        return f"failed (exit code {code}), see {run_dir / 'output.log'}"
    return f"done in {state.seconds:.0f} s"


def _ending(codes: dict[str, int], grid: Grid, folder: SweepFolder) -> int:
    from rl_infonce.report.formatting import counted
    from rl_infonce.sweeps.display import counts

    states = folder.states(grid)
    print(f"{counted(len(states), 'cell')}: {counts(states)}")
    unfinished = [name for name, state in states.items() if state.status != "done"]
    stopped = [name for name in unfinished if codes.get(name) == INTERRUPTED]
    failed = [
        name
        for name in states
        if codes.get(name, 0) not in (0, INTERRUPTED)  # though it may have scores by now
        or (name in unfinished and name not in stopped)
    ]
    if unfinished:
        print(f"Go on with: rl-infonce sweep --resume {shlex.quote(str(folder.path))}")
    for name in failed:
        reason = states[name].reason
        print(
            f"rl-infonce sweep: {name} failed" + (f": {reason}" if reason else ""), file=sys.stderr
        )
    if stopped:
        return INTERRUPTED
    return 1 if failed else 0
