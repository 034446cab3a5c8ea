"""Plan a sweep, train it cell by cell, and judge it when it ends."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rl_infonce.runs.signals import INTERRUPTED
from rl_infonce.sweeps import estimate
from rl_infonce.sweeps.engines import Engine
from rl_infonce.sweeps.grid import Cell, Grid, content_of, parse_grid
from rl_infonce.sweeps.progress import CellState, cell_state
from rl_infonce.sweeps.study import check_study, trials_grid
from rl_infonce.sweeps.sweep_folder import SweepFolder, remove_checkpoints

GIB = 2**30
States = Mapping[str, CellState]


class CellEnd(NamedTuple):
    """A cell that ended, with the exit code of its last command."""

    name: str
    code: int
    state: CellState
    run_dir: Path


class SweepEnd(NamedTuple):
    """A sweep that ended, stopped by a signal or not, and the names of the cells that failed."""

    states: States
    is_stopped: bool
    failed: list[str]

    @property
    def is_whole(self) -> bool:
        """Whether every cell is done."""
        return all(state.status == "done" for state in self.states.values())

    @property
    def code(self) -> int:
        """Exit code of the sweep."""
        return INTERRUPTED if self.is_stopped else int(bool(self.failed))


@dataclass(frozen=True)
class SweepRun:
    """A grid, the content of its file, its folder, and the engine that trains what is missing.

    A run that searches trains the trials of the grid's study instead of its arms. With
    `mixed_versions`, cells go on with other versions of packages.
    """

    grid: Grid
    content: bytes
    folder: SweepFolder
    engine: Engine
    searches: bool = False
    keeps_checkpoints: bool = False
    mixed_versions: bool = False

    def planned(self) -> Grid:
        """Return the grid whose cells are to be trained, as far as a study can know them."""
        return trials_grid(self.grid, self.folder.begun()) if self.searches else self.grid

    def check_folder(self, planned: Grid) -> None:
        """Raise unless the folder holds cells of the grid, and of the versions installed now.

        Where trials are searched, its former ones must compare with those to come.
        """
        self.folder.check_cells(self.grid)
        if self.searches:
            check_study(self.folder, self.grid)
        if not self.mixed_versions:
            self.folder.check_versions(planned)

    def begin(self, planned: Grid, states: States, command: str, *, needs_room: bool) -> None:
        """Check all that can fail, make the folder that of the grid, and note the session.

        The grid is that of `planned`, with the states of its cells. If the sweep needs room, a disk
        that may become full is refused.
        """
        self.check_folder(planned)
        if not self.keeps_checkpoints:  # cells may have ended when nobody was there to remove them
            for cell in planned.cells():
                if states[cell.name].status == "done":
                    remove_checkpoints(self.folder.run_dir(cell))
        missing = cells_to_train(planned, states)
        if missing:
            if needs_room:
                self._check_disk(planned, missing)
            self.engine.check_cluster()
        self.folder.adopt(self.grid, self.content)
        self.folder.begin_session(self.engine.name, command)

    def disk(self, planned: Grid, missing: Sequence[Cell]) -> int:
        """Return the bytes that missing cells take at most."""
        n_running = self.engine.jobs_at_once(len(missing))
        n_with_checkpoints = len(missing) if self.keeps_checkpoints else n_running
        return estimate.disk_of_all(missing, planned.n_timesteps, n_with_checkpoints)

    def _check_disk(self, planned: Grid, missing: Sequence[Cell]) -> None:
        needed = self.disk(planned, missing)
        free = estimate.free_bytes(self.folder.path)
        if needed > free:
            raise OSError(
                f"Expected {needed / GIB:.1f} GiB of room in {self.folder.path}, got "
                f"{free / GIB:.1f}. Make room, choose another --output, or pass --force."
            )

    def train(self, grid: Grid) -> Generator[CellEnd, None, None]:
        """Train the cells of a grid that are not done, and yield each when it ends.

        Closing the generator asks trainings to save and stop, and waits for them.
        """
        cells = {cell.name: cell for cell in cells_to_train(grid, self.folder.states(grid))}
        jobs = [
            self.folder.job(cell, grid, mixed_versions=self.mixed_versions)
            for cell in cells.values()
        ]
        with contextlib.closing(self.engine.run(jobs, self.folder.path)) as engine:
            for name, code in engine:
                self.folder.grid_path()  # a folder that was deleted is not filled once more
                run_dir = self.folder.run_dir(cells[name])
                state = cell_state(cells[name], grid, run_dir)
                yield CellEnd(name, code, state, run_dir)
                if state.status == "done" and not self.keeps_checkpoints:
                    remove_checkpoints(run_dir)

    def judge(self, codes: Mapping[str, int]) -> SweepEnd:
        """Return how the sweep ended, from the exit codes of cells that ended in this session."""
        states = self.folder.states(self.grid)
        unfinished = {name for name, state in states.items() if state.status != "done"}
        stopped = {name for name in unfinished if codes.get(name) == INTERRUPTED}
        failed = [
            name
            for name in states
            if codes.get(name, 0) not in (0, INTERRUPTED)  # though it may have scores by now
            or name in unfinished - stopped
        ]
        return SweepEnd(states, bool(stopped), failed)


def cells_to_train(grid: Grid, states: States) -> list[Cell]:
    """Return the cells that are not done; a folder with something else in it stays as it is."""
    return [
        cell
        for cell in grid.cells()
        if states[cell.name].status != "done" and not states[cell.name].reason
    ]


def find_sweep(
    grid: Path | None, output: Path | None, resume: Path | None
) -> tuple[Grid, bytes, SweepFolder]:
    """Return the grid of a sweep, the content of its file, and the sweep's folder.

    Exactly one of a grid's file and of `resume`, the folder of a sweep that has one, must be given.
    Without an output folder, the sweep goes to sweeps/NAME of the grid.
    """
    if grid is not None and resume is None:
        if grid.is_dir():
            raise IsADirectoryError(
                f"Expected the file of a grid, got the folder {grid}. To go on with a sweep that "
                f"is in it: rl-infonce sweep --resume {shlex.quote(str(grid))}"
            )
        if not grid.exists():
            raise FileNotFoundError(
                f"Expected a grid at {grid}, got no such file. "
                "rl_infonce/sweeps/README.md shows a grid."
            )
        path, folder = grid, SweepFolder(output or Path("sweeps") / grid.stem)
    elif grid is None and resume is not None:
        if output is not None:
            raise ValueError("Expected --resume without --output: --resume names the folder.")
        folder = SweepFolder(resume)
        path = folder.grid_path()
    else:
        got = "neither" if grid is None else "both"
        raise ValueError(f"Expected a grid, or --resume with the folder of a sweep, got {got}.")
    content = content_of(path)
    folder.check_own(content)
    return parse_grid(content, path, check_files=True), content, folder
