"""The folder of a sweep: its grid, its cells, and who works on it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_infonce.checks import listed
from rl_infonce.files.digests import sha256_of_file
from rl_infonce.files.durable import replace_bytes, replace_json
from rl_infonce.files.json_text import read_json
from rl_infonce.runs.checkpoints import prune_checkpoints
from rl_infonce.runs.claim import held
from rl_infonce.runs.run_directory import RECORD, made_folder, now, read_record
from rl_infonce.runs.software import differing_versions, software, software_of
from rl_infonce.sweeps.commands import probe_command, train_command
from rl_infonce.sweeps.grid import Cell, Grid, read_grid
from rl_infonce.sweeps.progress import CellState, cell_state
from rl_infonce.sweeps.run_cell import Job
from rl_infonce.sweeps.settings_check import without_session

_GRID, _SWEEP = "grid.toml", "sweep.json"
_FORMAT_VERSION = 1


class SweepFolder:
    """The folder with the cells of a sweep; it may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # workers of Ray have another working directory

    def run_dir(self, cell: Cell) -> Path:
        """Return the run directory of a cell."""
        return self.path / "cells" / cell.name

    def grid(self) -> Grid:
        """Return the grid with which the sweep was started last."""
        return read_grid(self.grid_path())

    def grid_path(self) -> Path:
        """Return the file of that grid, which must be there."""
        path = self.path / _GRID
        if not path.is_file():
            raise FileNotFoundError(f"Expected a sweep in {self.path}, got no {_GRID} there.")
        return path

    def states(self, grid: Grid) -> dict[str, CellState]:
        """Return where each cell of a grid stands, by its name."""
        return {cell.name: cell_state(cell, grid, self.run_dir(cell)) for cell in grid.cells()}

    def job(self, cell: Cell, grid: Grid, *, mixed_versions: bool = False) -> Job:
        """Return what trains a cell and probes its features, as far as neither is done.

        With `mixed_versions`, a cell that was begun goes on with other versions of packages.
        """
        run_dir = self.run_dir(cell)
        status = cell_state(cell, grid, run_dir).status
        commands = []
        if status not in ("trained", "done"):  # its checkpoints may be gone
            inexact = mixed_versions and status != "missing"
            commands.append(tuple(train_command(cell, grid, run_dir, inexact=inexact)))
        if grid.probe is not None and status != "done":
            commands.append(tuple(probe_command(cell, grid, run_dir)))
        return Job(cell.name, tuple(commands), run_dir / "output.log")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other sweeps out of the folder; raise a BlockingIOError if one is in it."""
        made_folder("--output", self.path)
        with held(self.path, "runs a sweep in it", " Choose another --output."):
            yield

    def adopt(self, grid: Grid, content: bytes) -> None:
        """Make a grid the sweep's own; cells that were ever begun in it must be what they were.

        The content is that of the grid's file. If this cannot be written, the former grid stays.
        """
        self.note_cells(grid)  # first: a grid without a record is not a sweep's
        replace_bytes(self.path / _GRID, content)
        (self.path / "cells").mkdir(exist_ok=True)

    def note_cells(self, grid: Grid) -> None:
        """Note the cells of a grid that does not become the sweep's; otherwise as `adopt`."""
        self.check_cells(grid)
        record = self._record()
        record["cells"] = {**record.get("cells", {}), **_meanings(grid), **self._begun()}
        replace_json(self.path / _SWEEP, record)

    def check_own(self, content: bytes) -> None:
        """Raise if the folder has another grid than this content and no sweep ever began there."""
        path = self.path / _GRID
        if path.is_file() and not (self.path / _SWEEP).exists() and path.read_bytes() != content:
            raise FileExistsError(
                f"Expected `--output` to be the folder of a sweep, or one without a {_GRID}, got "
                f"{self.path}, whose {_GRID} would be overwritten. Choose another folder."
            )

    def check_cells(self, grid: Grid) -> None:
        """Raise, with the settings that differ, unless cells are what they were when begun."""
        former = self._begun()
        differing = [
            difference
            for name, meaning in _meanings(grid).items()
            if name in former
            for difference in _differences(name, former[name], meaning)
        ]
        if differing:
            raise ValueError(
                f"Expected the cells of {self.path} with the settings they have, got "
                f"{listed(differing)}. Change them back or choose another --output; other "
                "settings of an arm may also have another name."
            )

    def begun(self) -> dict[str, dict[str, Any]]:
        """Return the settings of the cells that have a run, by name."""
        return {name: meaning["settings"] for name, meaning in self._begun().items()}

    def _begun(self) -> dict[str, Any]:
        """Return, as noted, the cells that have a run; one that never started may yet change."""
        noted = self._record().get("cells", {})
        cells = self.path / "cells"
        return {name: noted[name] for name in noted if (cells / name / RECORD).exists()}

    def check_versions(self, grid: Grid) -> None:
        """Raise unless the cells that are there were trained with what is installed now."""
        own = software()["versions"]
        found = set()
        for cell in grid.cells():
            with contextlib.suppress(ValueError, OSError):
                former = software_of(read_record(self.run_dir(cell)))["versions"]
                found |= {
                    f"{name} is {own.get(name)} (was {was} in {cell.name})"
                    for name, was in differing_versions(own, former).items()
                }
        if found:
            raise ValueError(
                f"Expected the versions with which {self.path} was begun, got: "
                f"{listed(sorted(found))}. Install those, choose another --output, or pass "
                "--mixed-versions."
            )

    def begin_session(self, engine: str, command: str) -> None:
        """Note who works on the sweep from now on, and with what."""
        record = self._record()
        session = {
            "start_time": now(),
            "command": command,
            "engine": engine,
            "host": platform.node(),
            "processors": os.cpu_count(),
            **software(),
        }
        record["sessions"] = [*record.get("sessions", []), session]
        replace_json(self.path / _SWEEP, record)

    def sessions(self) -> list[dict[str, Any]]:
        """Return who worked on the sweep, and with what."""
        return list(self._record().get("sessions", []))

    def _record(self) -> dict[str, Any]:
        path = self.path / _SWEEP
        if not path.is_file():
            return {"format_version": _FORMAT_VERSION, "sessions": []}
        try:
            record = read_json(path)
            _check_record(record)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(
                f"Expected the record of a sweep in {path}, got: {error!r}."
            ) from error
        return dict(record)


def _check_record(record: Any) -> None:
    """Raise an error of any kind unless cells can be compared and sessions added."""
    if record["format_version"] != _FORMAT_VERSION:
        raise ValueError(f"format version {record['format_version']!r}, not {_FORMAT_VERSION}")
    for session in record.get("sessions", []):
        session.keys()
    for meaning in record.get("cells", {}).values():
        meaning["settings"].keys()


def _meanings(grid: Grid) -> dict[str, Any]:
    """Return what each cell stands for, by its name, as in JSON."""
    meanings, digest_of = {}, functools.cache(sha256_of_file)  # arms may share an encoder
    for cell in grid.cells():
        settings = dict(cell.settings)
        meaning = {"settings": settings, "n_timesteps": grid.n_timesteps, "probe": grid.probe}
        file = Path(settings.get("pretrained", ""))
        if file.is_file():  # its path may be relative, and the file may be written again
            meaning["encoder_sha256"] = digest_of(file)
        meanings[cell.name] = meaning
    return dict(json.loads(json.dumps(meanings)))


def _differences(name: str, former: Mapping[str, Any], meaning: Mapping[str, Any]) -> list[str]:
    was, now_is = _flat(former), _flat(meaning)
    return [
        f"{name}: {key} {now_is.get(key)} (was {was.get(key)})"
        for key in sorted(was.keys() | now_is.keys())
        if was.get(key) != now_is.get(key)
        and not (key == "content of pretrained" and None in (was[key], now_is[key]))  # unknown
    ]


def _flat(meaning: Mapping[str, Any]) -> dict[str, Any]:
    rest = {"n_timesteps": meaning.get("n_timesteps"), "[probe]": meaning.get("probe")}
    trained = {**without_session(meaning["settings"]), **rest}
    return {**trained, "content of pretrained": meaning.get("encoder_sha256")}


def remove_checkpoints(run_dir: Path) -> None:
    """Remove what a finished run needs no more; its models, curves and scores stay."""
    folder = run_dir / "checkpoints"
    if folder.is_dir():
        prune_checkpoints(folder, 0)
