"""The folder of a sweep: its grid, its cells, and who works on it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_infonce.json_text import read_json
from rl_infonce.runs.checkpoints import prune_checkpoints
from rl_infonce.runs.claim import held
from rl_infonce.runs.durable import replace_json
from rl_infonce.runs.run_directory import now, read_record, software
from rl_infonce.sweeps.commands import probe_command, train_command
from rl_infonce.sweeps.grid import Cell, Grid, read_grid
from rl_infonce.sweeps.run_cell import Job

__all__ = ["SweepFolder", "remove_checkpoints"]

_GRID, _RECORD = "grid.toml", "sweep.json"
_DECIDING = ("torch", "ale-py", "gymnasium", "numpy", "stable-baselines3", "rl_infonce")


class SweepFolder:
    """Where the cells of a sweep are.

    Args:
        path: May not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def run_dir(self, cell: Cell) -> Path:
        """Return the run directory of a cell."""
        return self.path / "cells" / cell.name

    def grid(self) -> Grid:
        """Return the grid with which the sweep was started last.

        Raises:
            FileNotFoundError: If there is none.
            GridError: If it was changed to something that cannot be run.
        """
        path = self.path / _GRID
        if not path.is_file():
            raise FileNotFoundError(f"Expected a sweep in {self.path}, got no {_GRID} there.")
        return read_grid(path)

    def job(self, cell: Cell, grid: Grid) -> Job:
        """Return what trains a cell and probes its features."""
        run_dir = self.run_dir(cell)
        commands = [tuple(train_command(cell, grid, run_dir))]
        if grid.probe is not None:
            commands.append(tuple(probe_command(cell, grid, run_dir)))
        return Job(cell.name, tuple(commands), run_dir / "output.log")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other sweeps out of the folder.

        Raises:
            BlockingIOError: If another process is in it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with held(self.path, "runs a sweep in it", " Choose another --output."):
            yield

    def adopt(self, grid: Grid, path: Path) -> None:
        """Make a grid the sweep's; cells it shares with the former one must be the same.

        Raises:
            ValueError: If a cell would not be what it was; the settings are named.
        """
        if (self.path / _GRID).is_file():
            _check_same(self.grid(), grid)
        if path.resolve() != (self.path / _GRID).resolve():
            shutil.copyfile(path, self.path / _GRID)

    def check_versions(self, grid: Grid) -> None:
        """Raise unless the cells that are there were trained with what is installed now.

        Raises:
            ValueError: If a version differs; it is named.
        """
        own = software()["versions"]
        found = set()
        for cell in grid.cells():
            with contextlib.suppress(FileNotFoundError, ValueError, OSError):
                former = read_record(self.run_dir(cell))["versions"]
                found |= {
                    f"{name} is {own.get(name)} (was {former.get(name)} in {cell.name})"
                    for name in _DECIDING
                    if own.get(name) != former.get(name)
                }
        if found:
            raise ValueError(
                f"Expected the versions with which {self.path} was begun, got: "
                f"{'; '.join(sorted(found)[:5])}. Install those, choose another --output, or pass "
                "--mixed-versions."
            )

    def begin_session(self, engine: str, command: str) -> None:
        """Note who works on the sweep from now on, and with what."""
        path = self.path / _RECORD
        record: dict[str, Any] = {"format_version": 1, "sessions": []}
        if path.is_file():
            record = dict(read_json(path))
        session = {
            "start_time": now(),
            "command": command,
            "engine": engine,
            "host": platform.node(),
            "processors": os.cpu_count(),
            **software(),
        }
        record["sessions"] = [*record.get("sessions", []), session]
        replace_json(path, json.loads(json.dumps(record)))


def _check_same(former: Grid, grid: Grid) -> None:
    before = {cell.name: cell for cell in former.cells()}
    differing = [
        f"{cell.name}: {dict(cell.settings)} (was {dict(before[cell.name].settings)})"
        for cell in grid.cells()
        if cell.name in before and dict(cell.settings) != dict(before[cell.name].settings)
    ]
    if former.n_timesteps != grid.n_timesteps:
        differing.append(f"n_timesteps {grid.n_timesteps} (was {former.n_timesteps})")
    if former.probe != grid.probe:
        differing.append(f"[probe] {grid.probe} (was {former.probe})")
    if differing:
        raise ValueError(
            "Expected the cells of this folder with the settings they have, got "
            f"{'; '.join(differing[:5])}. Choose another --output."
        )


def remove_checkpoints(run_dir: Path) -> None:
    """Remove what a finished run needs no more; its models, curves and scores stay."""
    folder = run_dir / "checkpoints"
    if folder.is_dir():
        prune_checkpoints(folder, 0)
