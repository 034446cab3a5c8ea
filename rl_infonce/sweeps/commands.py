"""What a cell trains and probes: as commands that a person would type, and as a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_infonce.hyperparameters import flag_words, is_schedule
from rl_infonce.sweeps.grid import Cell, Grid
from rl_infonce.training.plan import TrainingPlan


def train_command(cell: Cell, grid: Grid, run_dir: Path, *, inexact: bool = False) -> list[str]:
    """Return the arguments of `rl-infonce` that start a cell's training or go on with it.

    An inexact training goes on although versions of packages differ.
    """
    return [
        *("train", "--game" if cell.is_atari else "--env", cell.game),
        *("--algo", cell.algo, "--seed", str(cell.seed)),
        *("-n", str(grid.n_timesteps), "--run-dir", str(run_dir), "--no-progress"),
        *(["--resume-inexact"] if inexact else []),
        *flag_words(_given(cell)),
    ]


def plan_of(cell: Cell, n_timesteps: int) -> TrainingPlan:
    """Return the training that a cell's command starts."""
    return TrainingPlan.of(
        {
            "game" if cell.is_atari else "env": cell.game,
            "algo": cell.algo,
            "seed": cell.seed,
            "n_timesteps": n_timesteps,
            **_given(cell),
        }
    )


def probe_command(cell: Cell, grid: Grid, run_dir: Path) -> list[str]:
    """Return the arguments of `rl-infonce` that probe the features of a cell."""
    return [
        *("probe", "--game", cell.game, "--features-of", str(run_dir / "model.zip")),
        *("--output", str(run_dir / "probe"), "--no-progress"),
        *(["--device", cell.settings["device"]] if "device" in cell.settings else []),
        *flag_words(grid.probe_settings(cell)),
    ]


def _given(cell: Cell) -> dict[str, Any]:
    """Return a cell's settings as flags of `rl-infonce train` take them."""
    given = dict(cell.settings)
    if "pretrained" in given:  # workers of Ray have another working directory
        given["pretrained"] = Path(given["pretrained"]).absolute()
    if "hyperparameters" in given:
        values = given.pop("hyperparameters").items()
        given["hyperparams"] = [f"{n}:{v if is_schedule(v) else repr(v)}" for n, v in values]
    return given
