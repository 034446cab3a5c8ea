"""What did the arms of ppo_arms.toml learn, beside ST-DIM on the games' frames alone?

Pretrains the agents' encoder on what a random agent sees, probes it on the frames on which the
sweep's features were probed, and prints returns and features of all. `pretrain` resumes; several
processes may share the folders. `spread` measures how many directions pretrained features have.

    python experiments/ppo_arms.py pretrain --runs RUNS --output experiments/results/ppo_arms
    python experiments/ppo_arms.py spread --runs RUNS --output experiments/results/ppo_arms
    python experiments/ppo_arms.py table --output experiments/results/ppo_arms
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from alive_encoders import plan_of, probe, states

from rl_infonce.atari.human_scores import human_scores
from rl_infonce.files.durable import replace_json
from rl_infonce.networks.encoder_file import load_encoder, untrained
from rl_infonce.probing import extract_features
from rl_infonce.report.formatting import notes_on_arms
from rl_infonce.report.probe_tables import probe_table_by_game, with_references
from rl_infonce.report.return_tables import comparison_table, returns_table
from rl_infonce.report.runs import Run, mean_f1, scores_by_arm
from rl_infonce.report.sections import MEASURES
from rl_infonce.report.table import markdown_table, to_markdown
from rl_infonce.report.wall_clock import scores_at_equal_time
from rl_infonce.runs.claim import claimed
from rl_infonce.sb3.diagnostics import dead_share, effective_rank
from rl_infonce.scoring.scores_file import read_scores
from rl_infonce.sweeps.grid import Grid, read_grid
from rl_infonce.sweeps.results import f1_by_category, read_results
from rl_infonce.sweeps.sweep_folder import SweepFolder
from rl_infonce.training.atari_encoder import pretrain_encoder

GRID = Path(__file__).with_suffix(".toml")
ALGO, OFFLINE, BUDGET, N_FRAMES = "ppo", "stdim_offline", "250k frames", 100_000
OTHERS = {"placebo": ("infonce",), "infonce": ("minibatch", "weak"), "weak_placebo": ("weak",)}
"""Arms beside the baseline, placebos and drawn pairs, and what is compared with them."""
SAME_FRAMES = ("frames_hash", "labels_hash")
SPREAD, N_STATES = "offline_spread.json", 2000


def pretrain(grid: Grid, runs: Path, output: Path, budget: str, n_frames: int) -> None:
    """Pretrain and probe the encoders that have no scores yet."""
    for cell in (cell for cell in grid.cells() if cell.arm == grid.arms[0]):
        folder, name = output / "offline", f"{cell.game}-{cell.seed}"
        with claimed(folder / f"{name}.json", runs) as is_missing:
            if is_missing:
                (runs / name).mkdir(exist_ok=True)
                plan = plan_of(cell.game, cell.seed, budget, n_frames)
                print(f"Pretraining {runs / name}", flush=True)
                path, _ = pretrain_encoder(plan, runs / name)
                scores = probe(cell.game, cell.seed, grid.probe_settings(cell), path)
                scores.replace(folder / f"{name}.json")


def spread(grid: Grid, runs: Path, output: Path) -> None:
    """Write how many features of pretrained encoders differ between states, and in what rank.

    Raises:
        FileNotFoundError: If an encoder is missing.
    """
    paths = {
        (game, seed): runs / f"{game}-{seed}" / "encoder.safetensors"
        for game in grid.games
        for seed in grid.seeds
    }
    if missing := [path.parent.name for path in paths.values() if not path.exists()]:
        raise FileNotFoundError(
            f"Expected the encoders of all games and seeds in {runs}, got none of "
            f"{', '.join(missing)}. Run `pretrain` with an --output that has no scores of them."
        )
    cells = []
    for game in grid.games:
        images = states(game, (grid.probe or {})["n_frames"], N_STATES)
        for seed in grid.seeds:
            trained = load_encoder(paths[game, seed])
            networks = {"untrained": untrained(trained, seed), OFFLINE: trained}
            found = {name: measures(network, images) for name, network in networks.items()}
            cells.append({"game": game, "seed": seed, **found})
    replace_json(output / SPREAD, {"n_states": N_STATES, "cells": cells})


def measures(network: torch.nn.Module, images: Any) -> dict[str, float]:
    """Return the share of features that are the same for all states, and their effective rank."""
    features = torch.as_tensor(extract_features(network.eval(), images))
    return {
        "dead_share": float(dead_share(features, tolerance=0.0)),
        "effective_rank": float(effective_rank(features)),
    }


def spread_table(content: Mapping[str, Any]) -> str:
    """Return the means over seeds, game by game."""
    rows = []
    for game in dict.fromkeys(cell["game"] for cell in content["cells"]):
        own = [cell for cell in content["cells"] if cell["game"] == game]
        values = [
            format(fmean(cell[network][measure] for cell in own), form)
            for measure, form in (("dead_share", ".2f"), ("effective_rank", ".0f"))
            for network in ("untrained", OFFLINE)
        ]
        rows.append([game, *values, str(len(own))])
    named = [f"{of}, {network}" for of in ("dead", "rank") for network in ("untrained", OFFLINE)]
    return markdown_table([f"features on {content['n_states']} states", *named, "seeds"], rows)


def offline_runs(grid: Grid, output: Path) -> Iterator[tuple[str, Run]]:
    """Yield what the pretrained encoders know, and on which frames and labels, by game."""
    for game in grid.games:
        for seed in grid.seeds:
            path = output / "offline" / f"{game}-{seed}.json"
            if not path.exists():
                continue
            content = read_scores(path)
            cells = [cell for cell in content["cells"] if cell["seed"] == seed]
            (frames,) = {"".join(cell[name] for name in SAME_FRAMES) for cell in cells}
            probes = {
                cell["protocol"]: {"trained": f1_by_category(cell["scores"])}
                for cell in cells
                if content["encoders"][cell["encoder"]]["kind"] == "file"
            }
            nothing = np.array([], np.int64), np.array([], np.float64)
            yield frames, Run(game, ALGO, OFFLINE, seed, 1, 1, *nothing, probes=probes)


def check_same_frames(output: Path, grid: Grid, frames: Mapping[str, str]) -> None:
    """Raise unless the sweep's features were probed on the frames of the pretrained ones."""
    for cell in grid.cells():
        path = SweepFolder(output).run_dir(cell) / "probe" / "scores.json"
        if path.exists() and cell.game in frames:
            for scores in read_scores(path)["cells"]:
                if "".join(scores[name] for name in SAME_FRAMES) != frames[cell.game]:
                    raise ValueError(
                        f"Expected {path} of the frames and labels of {OFFLINE}, got others."
                    )


def table(output: Path) -> str:
    """Return what the loss did to the return, and what all features know."""
    results = read_results(SweepFolder(output))
    grid = results.grid
    offline = list(offline_runs(grid, output))
    check_same_frames(output, grid, {run.game: frames for frames, run in offline})
    trained = results.runs
    planned = dict.fromkeys(grid.arms, len(grid.seeds))
    rng = np.random.default_rng(0)
    tables = [f"Missing: {'; '.join(results.missing)}."] if results.missing else []
    for measure, words in MEASURES.items():
        by_arm = scores_by_arm(trained, ALGO, measure)
        shown = returns_table(trained, ALGO, measure, planned)
        tables.append(to_markdown(shown._replace(header=[words, *shown.header[1:]])))
        for against, arms in compared_with(grid).items():
            pairs = {arm: (by_arm.get(arm, {}), by_arm.get(against, {})) for arm in arms}
            heading = f"{against}: {words}"
            compared = comparison_table(pairs, heading, scales=human_scores(), rng=rng)
            tables.append(to_markdown(compared))
        tables.append(at_equal_wall_clock(trained, grid, measure, rng))
    runs = [*trained, *(run for _, run in offline)]
    for protocol in sorted({protocol for run in runs for protocol in run.probes}):
        expected = {**with_references(planned), OFFLINE: len(grid.seeds)}
        by_game = probe_table_by_game(runs, ALGO, protocol, expected)
        rows = [row for row in by_game.rows if row[0].endswith(": mean")]
        header = [f"{protocol}, mean F1", *by_game.header[1:]]
        tables.append(to_markdown(by_game._replace(header=header, rows=rows)))
        tables += features_compared(runs, grid, protocol, rng)
    if (output / SPREAD).exists():
        tables.append(spread_table(json.loads((output / SPREAD).read_text())))
    return "\n\n".join(tables)


def at_equal_wall_clock(
    trained: list[Run], grid: Grid, measure: str, rng: np.random.Generator
) -> str:
    """Return what the arms earned more than the baseline in the seconds of the faster of a pair."""
    arms = [arm for arm in grid.arms if arm != "baseline"]
    cut = {arm: scores_at_equal_time(trained, ALGO, arm, "baseline", measure) for arm in arms}
    pairs = {arm: (found.ours, found.theirs) for arm, found in cut.items()}
    heading = f"baseline: {MEASURES[measure]}, at equal wall-clock"
    compared = comparison_table(pairs, heading, scales=human_scores(), rng=rng)
    notes = notes_on_arms({arm: found.notes for arm, found in cut.items()})
    return to_markdown(compared._replace(notes=[*notes, *compared.notes]))


def compared_with(grid: Grid) -> dict[str, tuple[str, ...]]:
    """Return with what arms are compared, to those arms."""
    given = {
        of: tuple(arm for arm in arms if arm in grid.arms)
        for of, arms in OTHERS.items()
        if of in grid.arms
    }
    others = {of: arms for of, arms in given.items() if arms}
    return {"baseline": tuple(arm for arm in grid.arms if arm != "baseline"), **others}


def features_compared(
    runs: list[Run], grid: Grid, protocol: str, rng: np.random.Generator
) -> Iterator[str]:
    """Yield what all know more than the baseline, the placebo and untrained features."""
    f1 = scores_by_arm(runs, ALGO, mean_f1(protocol))
    beside = scores_by_arm(runs, ALGO, mean_f1(protocol, "untrained"))
    arms = compared_with(grid)
    arms = {**arms, "baseline": (*arms["baseline"], OFFLINE), "untrained": (*grid.arms, OFFLINE)}
    for against, names in arms.items():
        # The scores of an arm's own cells: those of others may be of another version.
        untrained = {arm: beside.get(arm, beside.get("baseline", {})) for arm in names}
        others = untrained if against == "untrained" else dict.fromkeys(names, f1.get(against, {}))
        pairs = {arm: (f1.get(arm, {}), others[arm]) for arm in names}
        heading = f"{against}: mean F1, {protocol}"
        yield to_markdown(comparison_table(pairs, heading, scales=None, rng=rng))
    usual = beside.get("baseline", {})
    moved = {arm: (own, usual) for arm, own in beside.items() if own != usual}
    if moved:
        heading = f"baseline: F1 of the same untrained encoder, {protocol}"
        yield to_markdown(comparison_table(moved, heading, scales=None, rng=rng))


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("pretrain", "spread", "table"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of encoders")
    parser.add_argument("--output", type=Path, required=True, help="folder of sweep and scores")
    parser.add_argument("--grid", type=Path, default=GRID, help="TOML file of the sweep")
    parser.add_argument("--budget", default=BUDGET, help="how long to pretrain")
    parser.add_argument(
        "--n-frames", type=int, default=N_FRAMES, help="number of frames to pretrain on"
    )
    arguments = parser.parse_args()
    if arguments.stage == "table":
        print(table(arguments.output))
        return
    torch.set_num_threads(1)
    for folder in (arguments.runs, arguments.output / "offline"):
        folder.mkdir(parents=True, exist_ok=True)
    grid = read_grid(arguments.grid)
    if arguments.stage == "spread":
        spread(grid, arguments.runs, arguments.output)
        return
    pretrain(grid, arguments.runs, arguments.output, arguments.budget, arguments.n_frames)


if __name__ == "__main__":
    main()
