"""Where the cells of a sweep stand, as their folders say."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_infonce.hyperparameters import parse_hyperparameters
from rl_infonce.runs.run_directory import read_record
from rl_infonce.scoring.scores_file import read_scores
from rl_infonce.sweeps.commands import plan_of
from rl_infonce.sweeps.grid import Cell, Grid
from rl_infonce.training.plan import OF_A_SESSION


class CellState(NamedTuple):
    """How far a cell has come.

    The status is "missing", "begun", "trained" (its features are still to be probed), "failed" or
    "done"; the seconds are those of all sessions that ended. The reason says why the folder could
    not be read, or holds another run, and is "" otherwise.
    """

    status: str
    step: int = 0
    seconds: float = 0.0
    reason: str = ""


_COMPLAINT = re.compile(r"rl-infonce \w+: (?!The run failed)|[\w.]*(Error|Exception)\b")
# These are compared otherwise (see below), or change nothing that is trained.
_OF_NO_CELL = {*OF_A_SESSION, "hyperparams", "pretrained", "on_nan", "log_folder"} - {"n_timesteps"}


def cell_state(cell: Cell, grid: Grid, run_dir: Path) -> CellState:
    """Return where a cell stands; "failed", with the reason, if the folder holds another run."""
    try:
        record = read_record(run_dir)
        differing = sorted(_differences(cell, grid.n_timesteps, record))
        if differing:
            reason = (
                f"Expected the run of {cell.name} in {run_dir}, got one with "
                f"{'; '.join(differing)}. Move it away, or give the grid its settings."
            )
            return CellState("failed", reason=reason)
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


def _differences(cell: Cell, n_timesteps: int, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that a record has of another run; those it lacks are not compared."""
    given = {**record["arguments"], "seed": record["seed"]}
    own = plan_of(cell, n_timesteps).arguments()
    for name in (own.keys() & given.keys()) - _OF_NO_CELL:
        # A study gives the only element of a list in place of the list.
        if given[name] not in (own[name], [own[name]]):
            yield f"{name} {given[name]!r} instead of {own[name]!r}"
    if "pretrained" in given and (given["pretrained"] is None) != (own["pretrained"] is None):
        yield f"pretrained {given['pretrained']!r} instead of {own['pretrained']!r}"
    words = given.get("hyperparams", "not said") or []
    if isinstance(words, list):
        found = parse_hyperparameters([str(word) for word in words])
        expected = parse_hyperparameters(own["hyperparams"] or ())
        if found != expected:
            yield f"hyperparameters {found} instead of {expected}"


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


def last_complaint(log: Path) -> str:
    """Return the last line with which a command, or Python, said why it ended, or ""."""
    found = [line for line in _last_lines(log) if _COMPLAINT.match(line)]
    return found[-1] if found else ""


def _last_lines(path: Path) -> list[str]:
    """Return the last whole lines of a file that another process may be writing."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, 2) - 2**16, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def _last_step(path: Path) -> int:
    """Return the step in the last row of a table."""
    lines = _last_lines(path)
    steps = [row[0] for row in csv.reader(lines) if row and row[0].isdecimal() and len(row[0]) < 19]
    return int(steps[-1]) if steps else 0
