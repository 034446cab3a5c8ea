"""How much of a network is alive at the end of a sweep's cells, and how far do features vary?

Encodes what a random agent sees with every trained encoder, and with those that training began
with. With --probe: are probes lower after training because fewer features vary? Beside a trained
encoder stands the one it began with, and as many of that one's features as still vary, drawn at
random.

    python experiments/live_features.py RUNS --output experiments/results/default_arms
    python experiments/live_features.py RUNS --output experiments/results/decoupled_arms --probe
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from alive_encoders import states

from rl_infonce.agents.saved_extractor import read_encoder
from rl_infonce.atari.cache import cached_frames
from rl_infonce.files.durable import replace_json
from rl_infonce.probing import ProbingTask, extract_features, make_task, probe_features
from rl_infonce.report.formatting import interval_words
from rl_infonce.report.statistics import t_difference
from rl_infonce.report.table import markdown_table
from rl_infonce.scoring.probe_runner import TASKS
from rl_infonce.sweeps.grid import Cell, Grid
from rl_infonce.sweeps.sweep_folder import SweepFolder
from rl_infonce.training.make_agent import make_agent

N_FRAMES, N_STATES = 10_000, 2000
COLUMNS = {
    "dead_share": "features that are 0 in all states",
    "std": "standard deviation over states",
    "norm": "norm",
}


def measures(features: npt.NDArray[np.float32]) -> dict[str, float]:
    """Return the share of features [K, D] that are always 0, their mean spread and their norm."""
    return {
        "dead_share": float((features == 0).all(axis=0).mean()),
        "std": float(features.std(axis=0).mean()),
        "norm": float(np.linalg.norm(features, axis=1).mean()),
    }


def untrained(cell: Cell, grid: Grid) -> torch.nn.Module:
    """Return the network with which a cell began."""
    model = make_agent(
        cell.algo,
        cell.game,
        n_timesteps=grid.n_timesteps,
        n_envs=1,
        seed=cell.seed,
        device="cpu",
        extractor={"infonce_coef": 0.0},
    )
    return torch.nn.Sequential(Scaled(), model.policy.features_extractor)


class Scaled(torch.nn.Module):
    """What SB3 does to an image before its extractor."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return uint8 [B, C, H, W] as floats in [0, 1]."""
        return images.float() / 255


def trained(folder: SweepFolder, grid: Grid) -> list[tuple[Cell, Path]]:
    """Return the cells that are trained, each with its model."""
    states_of_cells = folder.states(grid)
    models = [(cell, folder.run_dir(cell) / "model.zip") for cell in grid.cells()]
    return [
        (cell, path)
        for cell, path in models
        if states_of_cells[cell.name].status in ("trained", "done") and path.exists()
    ]


def measured(folder: SweepFolder, n_states: int) -> Iterator[dict[str, Any]]:
    """Yield the measures of every trained cell, and of what those of a game and seed began with."""
    grid = folder.grid()
    begun: set[tuple[str, int]] = set()
    for cell, path in trained(folder, grid):
        n_frames = grid.probe_settings(cell).get("n_frames", N_FRAMES)
        images = states(cell.game, n_frames, n_states)
        where = {"game": cell.game, "seed": cell.seed}
        if (cell.game, cell.seed) not in begun:
            begun.add((cell.game, cell.seed))
            features = extract_features(untrained(cell, grid), images)
            yield {**where, "arm": "untrained", **measures(features)}
        yield {**where, "arm": cell.arm, **measures(extract_features(read_encoder(path), images))}


def live(features: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return which features [K, D] are not the same number in all states."""
    return np.flatnonzero((features != features[0]).any(axis=0))


def as_wide(
    features: npt.NDArray[np.float32], n_live: int, rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Return so many of the features [K, D] that vary, drawn at random; all if they are fewer."""
    own = live(features)
    drawn = rng.choice(own, min(n_live, len(own)), replace=False)
    return features[:, np.sort(drawn)]


def probed(folder: SweepFolder) -> Iterator[dict[str, Any]]:
    """Yield converged F1 of every trained cell, and of what it began with, whole and as wide."""
    grid = folder.grid()
    for (game, seed), group in groupby(sorted(trained(folder, grid), key=_where), key=_where):
        cells = list(group)
        first, _ = cells[0]
        settings = grid.probe_settings(first)
        frames = cached_frames(game, settings.get("n_frames", N_FRAMES), seed=0)
        labelled = frames.labelled("agent")
        task = make_task(labelled, np.random.default_rng(seed), **TASKS["converged"])
        before = extract_features(untrained(first, grid), labelled.observations)
        whole = f1(before, task, seed)
        for cell, path in cells:
            features = extract_features(read_encoder(path), labelled.observations)
            n_live = len(live(features))
            narrow = as_wide(before, n_live, np.random.default_rng(seed))
            yield {
                **{"game": game, "seed": seed, "arm": cell.arm},
                **{"n_live_untrained": len(live(before)), "n_live": n_live},
                **{"untrained": whole, "as_wide": f1(narrow, task, seed)},
                "trained": f1(features, task, seed),
            }


def _where(found: tuple[Cell, Path]) -> tuple[str, int]:
    cell, _ = found
    return cell.game, cell.seed


def f1(features: npt.NDArray[np.float32], task: ProbingTask, seed: int) -> float:
    """Return the mean F1 of converged probes."""
    scores, _ = probe_features(features, task, seed=seed)
    return round(scores.mean.f1_weighted, 4)


def width_table(found: list[dict[str, Any]]) -> str:
    """Return the means over games and seeds as Markdown, with what each arm is short of."""
    rows = []
    for arm in dict.fromkeys(each["arm"] for each in found):
        own = [each for each in found if each["arm"] == arm]
        by_game: dict[str, dict[str, list[float]]] = {"trained": {}, "untrained": {}, "as_wide": {}}
        for each, name in product(own, by_game):
            by_game[name].setdefault(each["game"], []).append(each[name])
        widths = [
            f"{np.mean([each[n] for each in own]):.0f}" for n in ("n_live_untrained", "n_live")
        ]
        means = [f"{np.mean(list(by_game[name].values())):.3f}" for name in by_game]
        less = [
            _less(*both)
            for both in (
                (by_game["trained"], by_game["untrained"]),
                (by_game["as_wide"], by_game["untrained"]),
                (by_game["trained"], by_game["as_wide"]),
            )
        ]
        rows.append([arm, *widths, *means, *less, str(len(own))])
    header = ["arm", "live, untrained", "live, trained", "F1 trained", "untrained", "as wide"]
    less_of = ["trained - untrained", "as wide - untrained", "trained - as wide", "cells"]
    return markdown_table([*header, *less_of], rows)


def _less(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> str:
    if min(map(len, ours.values())) < 2:
        means = (np.mean([np.mean(values) for values in of.values()]) for of in (ours, theirs))
        return f"{np.subtract(*means):+.4f}"
    return interval_words(t_difference(ours, theirs), "+.4f")


def table(found: list[dict[str, Any]]) -> str:
    """Return the means over seeds as Markdown, a row for each game and arm."""
    rows = []
    games = list(dict.fromkeys(each["game"] for each in found))
    arms = list(dict.fromkeys(each["arm"] for each in found))

    def place(each: dict[str, Any]) -> tuple[int, int]:
        return games.index(each["game"]), arms.index(each["arm"])

    for (game, arm), group in groupby(sorted(found, key=place), key=place):
        cells = list(group)
        means = [f"{np.mean([each[name] for each in cells]):.3f}" for name in COLUMNS]
        rows.append([games[game], arms[arm], *means, str(len(cells))])
    return markdown_table(["game", "arm", *COLUMNS.values(), "seeds"], rows)


def main() -> None:
    """Measure a sweep's cells, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--n-states", type=int, default=N_STATES)
    parser.add_argument("--probe", action="store_true", help="compare probes, as told above")
    arguments = parser.parse_args()
    if arguments.probe:
        widths = list(probed(SweepFolder(arguments.runs)))
        replace_json(arguments.output / "feature_width.json", {"cells": widths})
        print(width_table(widths))
        return
    found = list(measured(SweepFolder(arguments.runs), arguments.n_states))
    content = {"n_states": arguments.n_states, "cells": found}
    replace_json(arguments.output / "live_features.json", content)
    print(table(found))


if __name__ == "__main__":
    main()
