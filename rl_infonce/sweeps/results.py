"""What the finished cells of a sweep hold, for a report."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_infonce.checks import listed
from rl_infonce.files.csv_log import STEP, read_rows
from rl_infonce.report.runs import LOGGED, Run
from rl_infonce.runs.run_directory import read_record, seconds_of
from rl_infonce.runs.software import differing_versions, software_of
from rl_infonce.scoring.scores_file import read_scores
from rl_infonce.sweeps.commands import train_command
from rl_infonce.sweeps.grid import Cell, Grid
from rl_infonce.sweeps.progress import CellState, cell_state
from rl_infonce.sweeps.sweep_folder import SweepFolder
from rl_infonce.training.session_record import differing_settings, noted_loss


class SweepResults(NamedTuple):
    """The finished runs of a sweep, and the names of the others with how far they have come.

    Notes name the runs whose versions of packages or defaults differ from those of the first one;
    `not_planned` are cells with a run which the grid had once and has no more.
    """

    grid: Grid
    runs: list[Run]
    missing: list[str]
    notes: list[str]
    not_planned: list[str]


def read_results(
    folder: SweepFolder, grid: Grid | None = None, *, mixed_versions: bool = False
) -> SweepResults:
    """Return the finished runs of the sweep's own grid, or of the one that is given.

    Nothing is merged if a cell has other settings than when it was begun, if features were probed
    with other labels or frames than those of another cell of the game, or, without
    `mixed_versions`, if runs have several versions of packages.
    """
    grid = folder.grid() if grid is None else grid
    folder.check_cells(grid)
    machines = _machines(folder.sessions(), "processors", " processors")
    runs: dict[str, Run] = {}
    missing = []
    probed: dict[str, dict[str, Any]] = {}
    losses: dict[tuple[str, str, str], tuple[str, Mapping[str, Any]]] = {}
    others: list[str] = []
    for cell in grid.cells():
        run_dir = folder.run_dir(cell)
        state = cell_state(cell, grid, run_dir)
        if state.status in ("done", "trained"):
            record = read_record(run_dir)
            runs[cell.name] = _run(cell, grid, run_dir, record, machines, state)
            others += _of_other_losses(cell, record, losses)
        if state.status == "done":
            _check_probes(cell, run_dir, probed)
        else:
            missing.append(f"{cell.name} ({_unfinished(state, run_dir, grid.probes(cell))})")
    others += _of_other_versions(runs)
    if others and not mixed_versions:
        raise ValueError(
            f"Expected runs of the same versions and defaults, got {listed(others)}. Train "
            "them again, or pass --mixed-versions."
        )
    in_order = sorted(runs.values(), key=lambda run: grid.arms.index(run.arm))
    names = {cell.name for cell in grid.cells()}
    not_planned = [name for name in folder.begun() if name not in names and "-trial_" not in name]
    return SweepResults(grid, in_order, missing, others, not_planned)


def _unfinished(state: CellState, run_dir: Path, wanted: set[tuple[str, int]]) -> str:
    """Return in words how far a cell has come, and why not further."""
    if state.status != "trained":
        return state.status + (f": {state.reason}" if state.reason else "")
    about = "trained; its return counts, its features"
    try:
        content = _scores(run_dir)
    except (ValueError, OSError):
        content = _UNPROBED
    for entry in content["cells"]:
        is_of_file = content["encoders"][entry["encoder"]]["kind"] == "file"
        is_wanted = (entry["protocol"], entry["seed"]) in wanted
        if is_of_file and is_wanted and entry["status"] == "failed":
            return f"{about} could not be probed: {entry['error']}"
    return f"{about} are not probed yet"


def _of_other_versions(runs: Mapping[str, Run]) -> list[str]:
    """Return which runs were trained with other versions than the first one began with."""
    found = []
    for name, run in runs.items():
        begun = next(iter(runs.values())).versions
        first = {package: versions.split(", ")[0] for package, versions in begun.items()}
        differing = [
            f"{package} {run.versions.get(package)} instead of {was}"
            for package, was in differing_versions(run.versions, first).items()
        ]
        if differing:
            found.append(f"{name} (trained with {', '.join(differing)})")
    return found


def _machines(sessions: Sequence[Mapping[str, Any]], name: str, unit: str = "") -> str:
    """Return the hosts of sessions, once each, in brackets what is known about them by a name."""
    found = {
        str(each["host"]) + (f" ({each[name]}{unit})" if name in each else "")
        for each in sessions
        if each.get("host")
    }
    return ", ".join(sorted(found))


def _of_other_losses(
    cell: Cell,
    record: Mapping[str, Any],
    first: dict[tuple[str, str, str], tuple[str, Mapping[str, Any]]],
) -> Iterator[str]:
    """Yield what sessions trained with another loss than the arm's first one, which is noted.

    Settings that neither grid nor flags name are defaults, which may have changed since.
    """
    for session in record["sessions"]:
        loss = noted_loss(record, session)
        if loss is None:
            continue
        observed = "games" if cell.is_atari else cell.game  # vectors have other defaults
        name, was = first.setdefault((observed, cell.algo, cell.arm), (cell.name, loss))
        differing = [
            f"{key} {own} instead of {former} of {name}"
            for key, own, former in differing_settings(loss, was)
        ]
        if differing:
            yield f"{cell.name} (trained with {', '.join(differing)})"


def _run(
    cell: Cell,
    grid: Grid,
    run_dir: Path,
    record: Mapping[str, Any],
    driver: str,
    state: CellState,
) -> Run:
    hosts = _machines(record["sessions"], "hardware") or driver
    software = software_of(record)
    if not (run_dir / "episodes.csv").is_file():
        raise FileNotFoundError(
            f"Expected the episodes of a finished run in {run_dir}, got no episodes.csv there. Put "
            "it back, or delete the folder and train the cell again."
        )
    episodes = _columns(run_dir / "episodes.csv", ("return",))
    steps, returns = episodes.get("return", ([], []))
    progress = _columns(run_dir / "progress.csv", LOGGED, only_finite=True)
    probed = _scores(run_dir) if state.status == "done" else _UNPROBED
    return Run(
        game=cell.game,
        algo=cell.algo,
        arm=cell.arm,
        seed=cell.seed,
        n_steps=grid.n_timesteps,
        n_steps_done=int(record["n_timesteps_done"]),
        steps=np.array(steps, np.int64),
        returns=np.array(returns, np.float64),
        curves={
            name: (np.array(progress[name][0], np.int64), np.array(progress[name][1]))
            for name in LOGGED
            if name in progress
        },
        probes=_probes(probed, grid.probes(cell)),
        architecture=_architecture(probed),
        probe_seeds=tuple(sorted({seed for _, seed in grid.probes(cell)})),
        # It names another folder: that of the cell holds the run already.
        command=shlex.join(["rl-infonce", *train_command(cell, grid, Path(cell.name))]),
        versions=software["versions"],
        commits=tuple(software["git_commit"].split(", ")) if software["git_commit"] else (),
        machine=f"{hosts}, {record.get('device', 'unknown device')}",
        seconds=seconds_of(record),
    )


def _columns(
    path: Path, names: Iterable[str], *, only_finite: bool = False
) -> dict[str, tuple[list[int], list[float]]]:
    """Return the steps and numbers of those columns that a table has."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in read_rows(path):
        for name in names:
            try:
                if row.get(name) and (math.isfinite(value := float(row[name])) or not only_finite):
                    steps, values = found.setdefault(name, ([], []))
                    steps.append(int(row[STEP]))
                    values.append(value)
            except (ValueError, TypeError) as error:
                raise ValueError(f"Expected numbers by step in {path}, got: {error}.") from error
    return found


_UNPROBED: dict[str, Any] = {"settings": {}, "encoders": {}, "cells": []}


def _scores(run_dir: Path) -> dict[str, Any]:
    """Return what a run's `scores.json` holds, or nothing if the grid has no [probe]."""
    path = run_dir / "probe" / "scores.json"
    return read_scores(path) if path.is_file() else _UNPROBED


def _architecture(content: Mapping[str, Any]) -> str:
    """Return what the untrained encoder is that was probed, in words."""
    found = [
        each["description"] for each in content["encoders"].values() if each["kind"] == "random"
    ]
    return ", ".join(found)


def _probes(
    content: Mapping[str, Any], wanted: set[tuple[str, int]]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return protocol -> encoder -> category -> F1, the mean over the wanted seeds."""
    kinds = {"file": "trained", "random": "untrained", "majority": "majority"}
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for cell in content["cells"]:
        if cell["status"] == "done" and (cell["protocol"], cell["seed"]) in wanted:
            encoder = kinds[content["encoders"][cell["encoder"]]["kind"]]
            for category, f1 in f1_by_category(cell["scores"]).items():
                by_category = found.setdefault(cell["protocol"], {}).setdefault(encoder, {})
                by_category.setdefault(category, []).append(f1)
    return {
        protocol: {
            encoder: {category: float(np.mean(values)) for category, values in scores.items()}
            for encoder, scores in encoders.items()
        }
        for protocol, encoders in found.items()
    }


def f1_by_category(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the weighted F1 of each category and of all as "mean"; ridge has none."""
    if "mean" not in scores:
        return {}
    everything = {"mean": scores["mean"], **scores["categories"]}
    return {category: each["f1_weighted"] for category, each in everything.items()}


_PROBE_AGAIN = (
    "Remove the folder `probe` in the older of these runs and call `rl-infonce sweep` again, which "
    "probes their models anew."
)


def _check_probes(cell: Cell, run_dir: Path, probed: dict[str, dict[str, Any]]) -> None:
    """Raise unless a cell's features were probed with the game's labels, frames and split."""
    content = _scores(run_dir)
    of_game = probed.setdefault(cell.game, {})
    for scores in content["cells"]:
        if scores["status"] != "done":
            continue
        of = f"variables of {scores['protocol']}, seed {scores['seed']}"
        variables = set(scores["scores"].get("variables", ()))
        if differing := sorted(variables ^ of_game.setdefault(of, variables)):
            raise ValueError(
                f"Expected all features on {cell.game} probed with the same variables, got "
                f"{listed(differing)} ({scores['protocol']}, seed {scores['seed']}) in some of "
                f"those before {run_dir} or in it, and not in all. Versions of this package "
                f"leave out different variables. {_PROBE_AGAIN}"
            )
        own = {name: str(scores[name]) for name in ("labels_hash", "frames_hash")}
        own["split_by"] = str(content["settings"].get("split_by"))
        if (patience := scores.get("penalty_patience")) is not None:  # earlier ones do not say it
            own["penalty_patience"] = str(patience)
        for name, value in own.items():
            first = of_game.setdefault(name, value)
            if value != first:
                raise ValueError(
                    f"Expected all features on {cell.game} probed with the same {name}, got "
                    f"{value} in {run_dir} and {first} before it. Results of other labels, frames, "
                    f"splits or probes are not merged. {_PROBE_AGAIN}"
                )
