"""Where does the loss raise the return? Arms of one algorithm on tasks, over many seeds.

A grid is a TOML file that says all that is trained: tasks, algorithm, hyperparameters, arms, seeds
and steps. Several processes may share the folders; what is there is not trained again.

    python experiments/regimes.py train experiments/regimes/GRID.toml --runs RUNS --output OUT
    python experiments/regimes.py table experiments/regimes/GRID.toml --output OUT
    python experiments/regimes.py random experiments/regimes/*.toml
    python experiments/regimes.py map experiments/regimes/*_distractors.toml --output RESULTS
    python experiments/regimes.py tried experiments/regimes/*_screen.toml --output RESULTS

An arm is `extractor = false` for stock Stable-Baselines3, or arguments of `InfoNCEExtractor`; one
that is `without_noise` plays the task of the unit, and has no inputs but the task's own, and one
with a `state_action_critic` has that of state_action_critic.py.
Scores are areas under the training curve: the mean return over the budget, in units of the task's
scale, where 0 is a random agent and 1 is the first arm on the task without distractors. The map has
one row for each grid, whose runs lie in RESULTS under its name. What was tried is counted over all
grids of an algorithm and a kind of noise: arms of other names or settings are other forms.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from regime_grids import read_grid
from regime_pages import draw, map_table, table, tasks_table, tried_table
from regime_scores import row_of
from regime_training import train_all
from regime_units import note_random_returns


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("train", "table", "map", "tried", "random"))
    parser.add_argument("grid", type=Path, nargs="+")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of locks")
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--seeds", nargs="+", type=int, help="some of the grid's seeds")
    parser.add_argument("--n-timesteps", type=int, help="another budget, to try the command")
    arguments = parser.parse_args()
    if arguments.stage == "random":
        note_random_returns([read_grid(each) for each in arguments.grid])
        return
    if arguments.stage == "map":
        rows = [row_of(read_grid(each), arguments.output / each.stem) for each in arguments.grid]
        print(map_table(rows), tasks_table(rows), sep="\n", end="")
        draw(rows, arguments.output / "map.svg")
        return
    if arguments.stage == "tried":
        grids = {each.stem: read_grid(each) for each in arguments.grid}
        print(tried_table(grids, arguments.output), end="")
        return
    grid = read_grid(*arguments.grid)
    if arguments.seeds:
        grid = grid._replace(seeds=tuple(arguments.seeds))
    if arguments.n_timesteps:
        grid = grid._replace(n_timesteps=arguments.n_timesteps)
    if arguments.stage == "table":
        print(table(grid, arguments.output), end="")
        return
    torch.set_num_threads(1)
    for folder in (arguments.runs, arguments.output):
        folder.mkdir(parents=True, exist_ok=True)
    train_all(grid, arguments.runs, arguments.output)


if __name__ == "__main__":
    main()
