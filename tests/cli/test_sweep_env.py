"""`rl-infonce sweep` and `report` on environments that are no Atari games."""

import csv
from pathlib import Path

import pytest

from rl_infonce.cli import main
from tests.cli.running import output_of
from tests.sweeps.grids import write_grid

pytestmark = pytest.mark.slow


@pytest.mark.thorough
def test_environments_are_swept_and_reported_beside_each_other(tmp_path: Path) -> None:
    grid = write_grid(
        tmp_path / "grid.toml",
        games=["breakout"],
        envs=["Pendulum-v1"],
        arms=["baseline", "infonce"],
        seeds=[0],
        n_timesteps=256,
        train={"n_envs": 1, "n_pairs": 8, "hyperparameters": {"n_steps": 64, "n_epochs": 1}},
    )
    folder = tmp_path / "sweep"
    words = ["sweep", str(grid), "-o", str(folder)]
    assert "2 environments x 1 algorithm" in output_of(*words, "--dry-run")
    assert main(words) == 0
    assert main(["report", str(folder)]) == 0
    cells = {path.name for path in (folder / "cells").iterdir() if path.is_dir()}
    assert {"Pendulum-v1-ppo-infonce-0", "breakout-ppo-baseline-0"} <= cells
    with (folder / "runs.csv").open(newline="") as file:
        areas = {(row["game"], row["arm"]): row["area"] for row in csv.DictReader(file)}
    assert float(areas["Pendulum-v1", "infonce"]) < 0
    page = (folder / "report.md").read_text()
    assert "No human score is known of Pendulum-v1: there, differences" in page
    assert "rl-infonce train --env Pendulum-v1 --algo ppo" in page
