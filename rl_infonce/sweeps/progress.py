"""Where the cells of a sweep stand, as their folders say."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from rl_infonce.runs.run_directory import read_record
from rl_infonce.scoring.scores_file import read_scores
from rl_infonce.sweeps.grid import Cell, Grid

__all__ = ["CellState", "cell_state"]


class CellState(NamedTuple):
    """How far a cell has come.

    Attributes:
        status: "missing", "begun", "trained" (its features are still to be probed), "failed" or
            "done".
        step: Agent steps trained.
        seconds: They took, of all sessions that ended.
        reason: Why the folder could not be read, else "".
    """

    status: str
    step: int = 0
    seconds: float = 0.0
    reason: str = ""


def cell_state(cell: Cell, grid: Grid, run_dir: Path) -> CellState:
    """Return where a cell stands; a folder that cannot be read is "failed", with the reason."""
    try:
        record = read_record(run_dir)
    except FileNotFoundError:
        return CellState("missing")
    except (ValueError, OSError) as error:
        return CellState("failed", reason=str(error))
    step = int(record.get("n_timesteps_done", 0))
    seconds = float(record.get("wall_seconds", 0.0))
    if record.get("status") == "done" and step >= grid.n_timesteps:
        is_done = grid.probe is None or _is_probed(
            run_dir / "probe" / "scores.json", grid.probes(cell)
        )
        return CellState("done" if is_done else "trained", step, seconds)
    status = "failed" if record.get("status") == "failed" else "begun"
    return CellState(status, max(step, _last_step(run_dir / "progress.csv")), seconds)


def _is_probed(path: Path, wanted: set[tuple[str, int]]) -> bool:
    """Return whether a file has scores of all its encoders by all protocols and seeds.

    `rl-infonce probe` names the untrained encoder and the majority class before it scores any.
    """
    try:
        content = read_scores(path)
    except (ValueError, OSError):
        return False
    if "file" not in {each["kind"] for each in content["encoders"].values()}:
        return False
    found: dict[str, set[tuple[str, int]]] = {key: set() for key in content["encoders"]}
    for entry in content["cells"]:
        if entry["status"] == "done":
            found[entry["encoder"]].add((entry["protocol"], entry["seed"]))
    return all(wanted <= probed for probed in found.values())


def _last_step(path: Path) -> int:
    """Return the step in the last whole row of a table that another process may be writing."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, 2) - 2**16, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return 0
    lines = text[: text.rfind("\n") + 1].splitlines()
    steps = [row[0] for row in csv.reader(lines) if row and row[0].isdecimal()]
    return int(steps[-1]) if steps else 0
