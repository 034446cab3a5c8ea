"""`rl-infonce sweep`: trainings of a whole grid, here or on a cluster."""

from __future__ import annotations

import argparse
import contextlib
import functools
import shlex
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from rl_infonce.cli.arguments import shown
from rl_infonce.hyperparameters import flag, flag_words
from rl_infonce.runs.signals import INTERRUPTED

if TYPE_CHECKING:
    from rl_infonce.sweeps.grid import Grid
    from rl_infonce.sweeps.study_run import TrialEnd
    from rl_infonce.sweeps.sweep_run import CellEnd, States, SweepRun

_ENGINES_OF = {
    "n_jobs": ("local", "ray"),  # a Ray that starts here
    "address": ("ray",),
    "gpus_per_cell": ("ray",),
    "retries": ("ray",),
    "slurm": ("slurm",),
}
_OF_ONE_SESSION = {"command", "grid", "output", "resume", "dry_run", "force"}
_REFRESHES_PER_SECOND = 0.5


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `sweep` and its flags."""
    parser = subparsers.add_parser(
        "sweep",
        usage="%(prog)s GRID.toml [options]",
        example="rl-infonce sweep grid.toml --n-jobs 2",
        help="train a grid of games or environments, algorithms, arms and seeds",
        description="Train games x algorithms x arms x seeds of a TOML grid. Every cell is a run "
        "directory that can be killed and goes on; run the command again, or pass --resume, and "
        "only what is missing is trained. Failed cells are named at the end and stop no other "
        "cell.",
    )
    add = parser.add_argument_group("the sweep").add_argument
    add("grid", nargs="?", type=Path, metavar="GRID.toml", help="File of the grid.")
    add("-o", "--output", type=Path, metavar="DIR", help="Folder of the sweep (sweeps/GRID).")
    add("--resume", type=Path, metavar="DIR", help="Go on with the sweep in this folder.")
    add(
        "--dry-run",
        action="store_true",
        help="Print the plan, try cells for a moment to estimate time and disk, and stop.",
    )
    add = parser.add_argument_group("what runs the cells").add_argument
    add(
        "--engine",
        choices=("local", "ray", "slurm"),
        default="local",
        help=shown("What runs the cells"),
    )
    add(
        "--n-jobs",
        type=int,
        metavar="N",
        help="Cells that run at once on this machine (one per GPU, or one per processor).",
    )
    add("--n-threads", type=int, default=1, metavar="N", help=shown("Processors of each cell"))
    add("--address", metavar="HOST:PORT", help="Address of a Ray cluster (Ray starts here).")
    add(
        "--gpus-per-cell",
        type=float,
        metavar="X",
        help="GPUs that a cell takes on Ray, e.g. 0.25 (--n-jobs cells share those of this "
        "machine, at most 1 each; on a cluster a cell takes none).",
    )
    add(
        "--retries",
        type=int,
        default=3,
        metavar="N",
        help=shown("How often a cell starts again when Ray lost its node"),
    )
    add(
        "--slurm",
        nargs="+",
        default=(),
        metavar="NAME:VALUE",
        help="Parameters of submitit's AutoExecutor, e.g. timeout_min:240 slurm_partition:gpu; "
        "timeout_min must be given.",
    )
    add = parser.add_argument_group("how it runs").add_argument
    add("--optimize", action="store_true", help="Search the settings of the grid's table [study].")
    add("--keep-checkpoints", action="store_true", help="Keep the checkpoints of finished cells.")
    add(
        "--mixed-versions",
        action="store_true",
        help="Go on although versions of packages have changed.",
    )
    add("--force", action="store_true", help="Start although the disk may become full.")
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing of a sweep and return the exit code.

    0: every cell is done. 1: some failed; they are named. 75: stopped by a signal; trainings have
    saved. 2: the grid or the folder cannot be used. Where a file cannot be written while cells
    run, trainings save also, and the code is 1.
    """
    try:
        _check_engine(arguments)
        sweep = _sweep(arguments)
        planned = sweep.planned()
        states = sweep.folder.states(planned)
        if arguments.dry_run:
            sweep.check_folder(planned)
            _print_plan(planned, sweep, states)
            _print_estimate(planned, sweep, states)
            return 0
        with sweep.folder.held():
            command = shlex.join(sys.argv)
            sweep.begin(planned, states, command, needs_room=not arguments.force)
            again = _again(arguments, sweep.folder.path)
            try:
                if arguments.optimize:
                    return _optimize(sweep, again)
                return _train(sweep, states, again)
            except OSError as error:  # of files, which is no wrong usage
                print(f"rl-infonce sweep: {error}", file=sys.stderr)
                return 1
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        arguments.usage_error(str(error))
    return 2


def _again(arguments: argparse.Namespace, folder: Path) -> str:
    """Return the command that goes on with the sweep in a folder as it was begun."""
    given = {name: getattr(arguments, name) for name in sorted(arguments.given - _OF_ONE_SESSION)}
    words = ["rl-infonce", "sweep", "--resume", str(folder), *flag_words(given)]
    return shlex.join(words)


def _check_engine(arguments: argparse.Namespace) -> None:
    """Raise if a flag was given that the engine would ignore."""
    for name, engines in _ENGINES_OF.items():
        if name in arguments.given and arguments.engine not in engines:
            raise ValueError(
                f"Expected {flag(name)} with --engine {' or '.join(engines)} alone, "
                f"got --engine {arguments.engine}. Leave it out."
            )


def _sweep(arguments: argparse.Namespace) -> SweepRun:
    from rl_infonce.hyperparameters import parse_hyperparameters
    from rl_infonce.sweeps.engines import Engine
    from rl_infonce.sweeps.sweep_run import SweepRun, find_sweep

    slurm = parse_hyperparameters(arguments.slurm, flag="--slurm", plain_text=True)
    engine = Engine(
        arguments.engine,
        n_jobs=arguments.n_jobs,
        n_threads=arguments.n_threads,
        address=arguments.address,
        gpus_per_cell=arguments.gpus_per_cell,
        n_retries=arguments.retries,
        cluster=slurm.pop("cluster", None),
        slurm=slurm,
    )
    engine.check()
    return SweepRun(
        *find_sweep(arguments.grid, arguments.output, arguments.resume),
        engine,
        searches=arguments.optimize,
        keeps_checkpoints=arguments.keep_checkpoints,
        mixed_versions=arguments.mixed_versions,
    )


# -- what is printed -------------------------------------------------------------------------------


def _print_plan(grid: Grid, sweep: SweepRun, states: States) -> None:
    """Print every cell and where it stands."""
    from rl_infonce.report.formatting import counted
    from rl_infonce.sweeps.display import counts

    task = "environment" if grid.envs else "game"
    print(
        f"{counted(len(states), 'cell')} in {sweep.folder.path}: "
        f"{counted(len(grid.tasks), task)} x {counted(len(grid.algos), 'algorithm')} x "
        f"{counted(len(grid.arms), 'arm')} x {counted(len(grid.seeds), 'seed')}, "
        f"{grid.n_timesteps:,} steps each; {counts(states)}"
    )
    for name, state in states.items():
        reason = f" ({state.reason})" if state.reason else ""
        print(f"  {name}: {state.status}{reason}")


def _print_estimate(grid: Grid, sweep: SweepRun, states: States) -> None:
    """Try the missing cells for a moment, and print what time and disk all of them take."""
    from rl_infonce.sweeps import estimate
    from rl_infonce.sweeps.sweep_run import GIB, cells_to_train

    missing = cells_to_train(grid, states)
    if not missing:
        return
    print("Cells are tried for a moment to estimate time and disk ...", flush=True)
    n_at_once, disk = sweep.engine.jobs_at_once(len(missing)), sweep.disk(grid, missing)
    tried = estimate.seconds_of_all(missing, grid.n_timesteps, sweep.engine.n_threads)
    for failed in tried.failed:
        print(f"A cell could not be tried, and is not in the hours: {failed}")
    print(
        f"Training takes about {_time(tried.seconds)}, or {_time(tried.seconds / n_at_once)} with "
        f"{n_at_once} at once if cells do not slow one another down (measured now, on this "
        f"machine, with {tried.n_tried} of the cells). It takes at most {disk / GIB:.1f} GiB of "
        "disk. Probes and the frames that they collect are not included."
    )


def _time(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def _watch(sweep: SweepRun, ends: Generator[CellEnd, None, None], grid: Grid) -> dict[str, int]:
    """Print cells as they end and, in a terminal, how far the others are; return exit codes."""
    from rich.live import Live

    from rl_infonce.sweeps.display import live_table

    codes: dict[str, int] = {}
    with contextlib.ExitStack() as shown, contextlib.closing(ends):
        if sys.stdout.isatty():
            shown.enter_context(
                Live(
                    get_renderable=lambda: live_table(sweep.folder.states(grid), grid.n_timesteps),
                    refresh_per_second=_REFRESHES_PER_SECOND,
                )
            )
        for end in ends:
            codes[end.name] = end.code
            print(f"{end.name}: {_words(end)}", flush=True)
    return codes


def _words(end: CellEnd) -> str:
    from rl_infonce.sweeps.progress import last_complaint

    if end.code == INTERRUPTED:
        return f"stopped at step {end.state.step:,}"
    if end.state.reason:
        return f"failed: {end.state.reason}"
    if end.code or end.state.status != "done":
        log = end.run_dir / "output.log"
        return (
            f"failed (exit code {end.code}): {last_complaint(log) or 'without a word'} (see {log})"
        )
    return f"done in {end.state.seconds:.0f} s"


def _train(sweep: SweepRun, states: States, again: str) -> int:
    """Train the cells of the grid and return the exit code."""
    from rl_infonce.report.formatting import counted
    from rl_infonce.sweeps.display import counts

    grid = sweep.grid
    _print_plan(grid, sweep, states)
    end = sweep.judge(_watch(sweep, sweep.train(grid), grid))
    print(f"{counted(len(end.states), 'cell')}: {counts(end.states)}")
    if not end.is_whole:
        print(f"Go on with: {again}")
    for name in end.failed:
        reason = end.states[name].reason
        because = f": {reason}" if reason else ""
        print(f"rl-infonce sweep: {name} failed{because}", file=sys.stderr)
    return end.code


def _optimize(sweep: SweepRun, again: str) -> int:
    """Search the study of the grid and return the exit code."""
    from rl_infonce.sweeps.study_run import StudyRun

    study = StudyRun(sweep, functools.partial(_watch, sweep))
    print(f"Trials' values are the {study.measure}.")
    for trial in study.trials():
        print(f"{trial.name}: {_outcome(trial)} with {dict(trial.settings)}", flush=True)
    if study.is_hopeless:
        print(
            f"rl-infonce sweep: the study stops, as {study.n_failed} trials failed and none has a "
            "value. Mend what their output.log says, and run the command again: with more "
            "n_trials, or another --output, if none is left.",
            file=sys.stderr,
        )
    if study.is_stopped:
        print(f"Go on with: {again}")
    best = study.best()
    if best is not None:
        print(f"The best of all trials is {best[0]}: {best[2]:+.4f} with {dict(best[1])}")
    elif not study.is_stopped:
        print("rl-infonce sweep: no trial of the study has a value", file=sys.stderr)
    return study.code


def _outcome(trial: TrialEnd) -> str:
    """Return a trial's value, or why it has none, from how its cells ended."""
    if trial.value is not None:
        return f"{trial.value:+.4f}"
    if trial.statuses and trial.statuses <= {"done", "trained"}:
        return (
            "no value, as in one of its runs no episode ended in time (raise n_timesteps) or a "
            "return is not finite,"
        )
    return "failed"
