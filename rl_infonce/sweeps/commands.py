"""The commands of a cell, as a person would type them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_infonce.hyperparameters import flag_words, is_schedule
from rl_infonce.sweeps.grid import Cell, Grid


def train_command(cell: Cell, grid: Grid, run_dir: Path, *, inexact: bool = False) -> list[str]:
    """Return the arguments of `rl-infonce` that start a cell's training or go on with it.

    An inexact training goes on although versions of packages differ.
    """
    settings = dict(cell.settings)
    if "pretrained" in settings:  # workers of Ray have another working directory
        settings["pretrained"] = str(Path(settings["pretrained"]).absolute())
    return [
        *("train", "--game" if cell.is_atari else "--env", cell.game),
        *("--algo", cell.algo, "--seed", str(cell.seed)),
        *("-n", str(grid.n_timesteps), "--run-dir", str(run_dir), "--no-progress"),
        *(["--resume-inexact"] if inexact else []),
        *_flags(settings),
    ]


def probe_command(cell: Cell, grid: Grid, run_dir: Path) -> list[str]:
    """Return the arguments of `rl-infonce` that probe the features of a cell."""
    return [
        *("probe", "--game", cell.game, "--features-of", str(run_dir / "model.zip")),
        *("--output", str(run_dir / "probe"), "--no-progress"),
        *(["--device", cell.settings["device"]] if "device" in cell.settings else []),
        *_flags(grid.probe_settings(cell)),
    ]


def _flags(settings: Mapping[str, Any]) -> list[str]:
    given = dict(settings)
    if "hyperparameters" in given:
        values = given.pop("hyperparameters").items()
        given["hyperparams"] = [f"{n}:{v if is_schedule(v) else repr(v)}" for n, v in values]
    return [*flag_words(given)]
