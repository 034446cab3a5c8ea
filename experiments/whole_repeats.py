"""Does SAC beside noise return by today's code what its study says?

`repeats.py` finds that its first steps differ by rounding, which training spreads, so that whole
runs have to be compared by what they return. Several processes may share the folders.

    python experiments/whole_repeats.py train --runs RUNS --output experiments/results/whole_repeats
    python experiments/whole_repeats.py table --output experiments/results/whole_repeats
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from checkouts import RESULTS, ROOT
from regime_grids import Grid, read_grid, runs_of
from regime_scores import Scores, measured
from regime_training import train_all

from rl_infonce.report.table import markdown_table

STUDY, TASK = "sac_sparse_distractors", "ReacherWhite128-v5"
ARMS = ("baseline", "infonce")
SEEDS = (0, 1)
PUBLISHED = RESULTS / "regimes" / STUDY


def whole_grid() -> Grid:
    """Return the study's grid."""
    return read_grid(ROOT / "experiments" / "regimes" / f"{STUDY}.toml")


def repeated_grid() -> Grid:
    """Return what of the study is trained again."""
    grid = whole_grid()
    arms = {arm: grid.arms[arm] for arm in ARMS}
    return grid._replace(tasks=(TASK,), arms=arms, seeds=SEEDS, unit={})


def table(output: Path) -> str:
    """Return mean returns over the budget of the study and of today's code as Markdown."""
    published = measured(runs_of(whole_grid(), PUBLISHED))
    today = measured(runs_of(repeated_grid(), output))
    rows = [
        [
            arm,
            *(shown(published, arm, seeds) for seeds in (whole_grid().seeds, SEEDS)),
            shown(today, arm, SEEDS),
        ]
        for arm in ARMS
    ]
    some = f"seeds {', '.join(map(str, SEEDS))}"
    return markdown_table(["arm", "study", f"study, {some}", f"today, {some}"], rows)


def shown(scores: Scores, arm: str, seeds: tuple[int, ...]) -> str:
    """Return the mean of an arm's runs, with the lowest and the highest."""
    own = [scores[TASK, arm][seed] for seed in seeds]
    return f"{np.mean(own):.1f} ({min(own):.1f} to {max(own):.1f})"


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("train", "table"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of locks")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.stage == "table":
        print(table(arguments.output), end="")
        return
    torch.set_num_threads(1)
    for folder in (arguments.runs, arguments.output):
        folder.mkdir(parents=True, exist_ok=True)
    train_all(repeated_grid(), arguments.runs, arguments.output)


if __name__ == "__main__":
    main()
