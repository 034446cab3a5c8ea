"""Which image encoders stay alive: how many features die, and what do those that live know?

The arms of alive_encoders.toml are forms of NatureCNN. A sweep trains PPO with each, `agents`
measures the encoders that it left. `pretrain` pretrains each form by ST-DIM on what a random agent
sees, probes it on the frames of the sweep's probes, and measures it. Beside each encoder stands an
untrained one of its own form. There is one file per cell; finished cells are kept, and several
processes may share the folders. Every process has one thread.

    export OMP_NUM_THREADS=1
    rl-infonce sweep experiments/alive_encoders.toml -o RUNS/sweep
    python experiments/alive_encoders.py agents --runs RUNS --output experiments/results/alive_encoders
    python experiments/alive_encoders.py pretrain --runs RUNS --output experiments/results/alive_encoders
    python experiments/alive_encoders.py table --output experiments/results/alive_encoders

`choose` prints the form to confirm: of those with fewer than 5 % dead features after ST-DIM, the
one whose features know most. alive_confirmation.toml holds games and seeds that chose nothing, of
which `pretrain --arms` trains the form that was chosen, and no other.

A feature is dead that hardly differs between states, and a channel of the convolutional map that
hardly differs between states and places; see `rl_infonce.sb3.diagnostics.dead_share`.
"""  # noqa: E501 - commands to copy

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rl_infonce.agents.saved_extractor import read_encoder
from rl_infonce.atari.cache import cached_frames
from rl_infonce.atari.human_scores import human_scores
from rl_infonce.device import hardware_name, usable_device
from rl_infonce.files.durable import replace_json
from rl_infonce.networks.encoder_file import load_encoder, untrained
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.probing import extract_features
from rl_infonce.report.return_tables import comparison_table
from rl_infonce.report.table import markdown_table, to_markdown
from rl_infonce.runs.claim import claimed
from rl_infonce.runs.software import software
from rl_infonce.sb3.diagnostics import dead_share, effective_rank
from rl_infonce.scoring.defaults import LABELS
from rl_infonce.scoring.probe_plan import make_plan
from rl_infonce.scoring.probe_runner import probe_games
from rl_infonce.scoring.scores_file import ScoresFile, read_scores
from rl_infonce.settings import ENCODER_SETTINGS
from rl_infonce.sweeps.grid import Cell, Grid, read_grid
from rl_infonce.sweeps.results import f1_by_category, read_results
from rl_infonce.sweeps.sweep_folder import SweepFolder
from rl_infonce.training.atari_encoder import EncoderPlan, pretrain_encoder

GRID = Path(__file__).with_suffix(".toml")
BUDGET, N_FRAMES, N_STATES = "250k frames", 100_000, 2000
MOST_DEAD = 0.05
"""Share of dead features that a form may have at the end to be chosen."""
KINDS = {"agents": "PPO", "pretrained": "ST-DIM"}
COLUMNS = {
    "dead_share": ("dead features", ".2f"),
    "dead_channels": ("dead channels", ".2f"),
    "effective_rank": ("rank", ".0f"),
}
Images = npt.NDArray[np.uint8]
BySeed = dict[str, dict[int, float]]


def form_of(cell: Cell) -> dict[str, Any]:
    """Return what stands between the linear layers of an arm's encoder, as the grid says it."""
    return {name: cell.settings[name] for name in ENCODER_SETTINGS if name in cell.settings}


# -- measuring -------------------------------------------------------------------------------------


class Map(nn.Module):
    """An encoder's convolutional map, flattened."""

    def __init__(self, encoder: PixelEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        """Return [K, C * H * W] of images [K, C, H, W]."""
        return self.encoder.local_features(images).flatten(1)


def states(game: str, n_frames: int, n_states: int) -> Images:
    """Return evenly spaced states of a random agent, or of the frames that cells are probed on."""
    observations = cached_frames(game, n_frames, seed=0).observations("agent")
    return observations[np.linspace(0, len(observations) - 1, n_states).astype(np.int64)]


def measures(encoder: PixelEncoder, images: Images) -> dict[str, float]:
    """Return the shares of dead features and channels, and the effective rank of the features."""
    features = torch.as_tensor(extract_features(encoder.eval(), images))
    maps = torch.as_tensor(extract_features(Map(encoder).eval(), images))
    places = maps.view(len(images), encoder.local_dim, -1).transpose(1, 2)
    return {
        "dead_share": float(dead_share(features)),
        "dead_channels": float(dead_share(places.reshape(-1, encoder.local_dim))),
        "effective_rank": float(effective_rank(features)),
    }


def measured(game: str, seed: int, n_frames: int, encoder: PixelEncoder) -> dict[str, Any]:
    """Return the measures of an encoder and of an untrained one of its form."""
    images = states(game, n_frames, N_STATES)
    beside: Any = untrained(encoder, seed)
    of_both = {"untrained": measures(beside, images), "trained": measures(encoder, images)}
    return {"measures": of_both, "n_states": N_STATES}


def record(cell: Cell, grid: Grid, encoder: PixelEncoder, **found: Any) -> dict[str, Any]:
    """Return what a cell's file says: form, measures, and what else was found."""
    n_frames = (grid.probe or {})["n_frames"]
    return {
        **{"game": cell.game, "arm": cell.arm, "seed": cell.seed, "form": encoder.form.changes},
        **measured(cell.game, cell.seed, n_frames, encoder),
        "hardware": hardware_name(usable_device("auto")),
        **found,
        **software(),
    }


def agents(runs: Path, output: Path) -> None:
    """Measure the encoders of the sweep's finished and probed cells that have no file yet."""
    folder = SweepFolder(runs / "sweep")
    results = read_results(folder)
    cells = {(each.game, each.arm, each.seed): each for each in results.grid.cells()}
    for run in (each for each in results.runs if each.probes):
        cell = cells[run.game, run.arm, run.seed]
        with claimed(output / "agents" / f"{cell.name}.json", runs / "agents") as is_missing:
            if is_missing:
                encoder = read_encoder(folder.run_dir(cell) / "model.zip")
                f1 = {
                    protocol: {of: found[of]["mean"] for of in ("trained", "untrained")}
                    for protocol, found in run.probes.items()
                }
                found = record(cell, results.grid, encoder, f1=f1, area=run.area)
                replace_json(output / "agents" / f"{cell.name}.json", found)
                print(cell.name, flush=True)
    if results.missing:
        print(f"Missing: {'; '.join(results.missing)}.")


# -- pretraining -----------------------------------------------------------------------------------


def pretrain(cells: Sequence[Cell], grid: Grid, arguments: argparse.Namespace) -> None:
    """Pretrain, probe and measure the encoders of cells that have no file yet."""
    runs, output = arguments.runs, arguments.output
    for cell in cells:
        path = output / "pretrained" / f"{cell.name}.json"
        folder = runs / "pretrained" / cell.name
        with claimed(path, folder.parent) as is_missing:
            if is_missing:
                folder.mkdir(exist_ok=True)
                found = pretrained(cell, grid, folder, arguments.budget, arguments.n_frames)
                replace_json(path, found)
                print(cell.name, flush=True)


def plan_of(game: str, seed: int, budget: str, n_frames: int, **form: Any) -> EncoderPlan:
    """Return how a form of the agents' encoder is pretrained, on frames of a random agent."""
    return EncoderPlan(
        game,
        encoder="nature",
        policy="random",
        budget=budget,
        n_frames=n_frames,
        seed=seed,
        **form,
    )


def pretrained(cell: Cell, grid: Grid, folder: Path, budget: str, n_frames: int) -> dict[str, Any]:
    """Return what the file of a cell says about its form, pretrained by ST-DIM."""
    plan = plan_of(cell.game, cell.seed, budget, n_frames, **form_of(cell))
    path, progress = pretrain_encoder(plan, folder)
    encoder: Any = load_encoder(path)
    return record(
        cell,
        grid,
        encoder,
        f1=probed(cell.game, cell.seed, grid.probe_settings(cell), path),
        budget=budget,
        n_frames=n_frames,
        settings={"learning_rate": plan.learning_rate, "precision": plan.settings().precision},
        steps=progress.step,
        seconds=round(progress.seconds, 1),
    )


def probe(game: str, seed: int, settings: Mapping[str, Any], encoder: Path) -> Path:
    """Return a file of scores of an encoder, and of an untrained one of its form.

    Frames, split and labels are those of a sweep's cell that has these settings.

    Raises:
        RuntimeError: If a probe fails; it has said why.
    """
    plan = make_plan(
        [game],
        [str(encoder)],
        seeds=[seed],
        protocols=settings["protocol"],
        labels=LABELS,
        n_frames=settings["n_frames"],
        say=print,
        complain=print,
    )
    scores = ScoresFile(encoder.parent / "probe", plan.settings)
    if not probe_games(plan, scores, command=shlex.join(sys.argv)):
        raise RuntimeError(f"Expected the features of {encoder} to be scored; see above.")
    return scores.path


def probed(
    game: str, seed: int, settings: Mapping[str, Any], encoder: Path
) -> dict[str, dict[str, float]]:
    """Return F1 by protocol of an encoder and of an untrained one of its form; see `probe`."""
    content = read_scores(probe(game, seed, settings, encoder))
    names = {"file": "trained", "random": "untrained"}
    found: dict[str, dict[str, float]] = {}
    for each in content["cells"]:
        kind = content["encoders"][each["encoder"]]["kind"]
        if kind in names and each["seed"] == seed:
            f1 = f1_by_category(each["scores"])["mean"]
            found.setdefault(each["protocol"], {})[names[kind]] = f1
    return found


# -- tables ----------------------------------------------------------------------------------------


def records(output: Path, kind: str) -> list[dict[str, Any]]:
    """Return what the files of a kind say, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted((output / kind).glob("*.json"))]


def by_seed(found: Sequence[Mapping[str, Any]], arm: str, *names: str) -> BySeed:
    """Return game -> seed -> the number under these names, of an arm's cells that have one."""
    numbers: BySeed = {}
    for each in found:
        value: Any = each
        for name in names:
            value = None if value is None else value.get(name)
        if each["arm"] == arm and value is not None:
            numbers.setdefault(each["game"], {})[each["seed"]] = value
    return numbers


def mean_of(numbers: BySeed) -> float:
    """Return the mean over games of the means over seeds."""
    return fmean(fmean(seeds.values()) for seeds in numbers.values()) if numbers else math.nan


def protocols_of(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the protocols of the probes."""
    return sorted({protocol for each in found for protocol in each["f1"]})


def forms_table(kind: str, found: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> str:
    """Return the means over games and seeds of all that was measured, a row for each arm."""
    beside = ("untrained", "trained")
    wanted = [
        (f"{words}, {of}", ("measures", of, name), form)
        for name, (words, form) in COLUMNS.items()
        for of in beside
    ]
    wanted += [
        (f"F1 {protocol}, {of}", ("f1", protocol, of), ".3f")
        for protocol in protocols_of(found)
        for of in beside
    ]
    rows = []
    for arm in arms:
        means = [format(mean_of(by_seed(found, arm, *names)), form) for _, names, form in wanted]
        n_cells = sum(each["arm"] == arm for each in found)
        rows.append([arm, *means, str(n_cells)])
    return markdown_table([KINDS[kind], *(words for words, _, _ in wanted), "cells"], rows)


def compared(
    kind: str, found: Sequence[Mapping[str, Any]], arms: Sequence[str], rng: np.random.Generator
) -> Iterator[str]:
    """Yield what each form's features know more than untrained ones, and than the baseline's."""
    others = [arm for arm in arms if arm != "baseline"]
    for protocol in protocols_of(found):
        of = {arm: by_seed(found, arm, "f1", protocol, "trained") for arm in arms}
        before = {arm: by_seed(found, arm, "f1", protocol, "untrained") for arm in arms}
        pairs = {arm: (of[arm], before[arm]) for arm in arms}
        heading = f"untrained of the same form: mean F1, {protocol}, {KINDS[kind]}"
        yield to_markdown(comparison_table(pairs, heading, scales=None, rng=rng))
        pairs = {arm: (of[arm], of.get("baseline", {})) for arm in others}
        heading = f"baseline: mean F1, {protocol}, {KINDS[kind]}"
        yield to_markdown(comparison_table(pairs, heading, scales=None, rng=rng))
    areas = {arm: by_seed(found, arm, "area") for arm in arms}
    if any(areas.values()):
        pairs = {arm: (areas[arm], areas.get("baseline", {})) for arm in others}
        heading = "baseline: mean return over the budget"
        yield to_markdown(comparison_table(pairs, heading, scales=human_scores(), rng=rng))


def chosen(output: Path, grid: Grid) -> str:
    """Return the pretrained form that knows most, among those that stay alive.

    Raises:
        ValueError: If cells are missing, or no form stays alive.
    """
    found = records(output, "pretrained")
    there = {(each["game"], each["arm"], each["seed"]) for each in found}
    missing = [c.name for c in grid.cells() if (c.game, c.arm, c.seed) not in there]
    if missing:
        raise ValueError(f"Expected every cell in {output}, missed {', '.join(missing)}.")
    dead = {a: mean_of(by_seed(found, a, "measures", "trained", "dead_share")) for a in grid.arms}
    known = {
        arm: mean_of(by_seed(found, arm, "f1", "converged", "trained"))
        for arm in grid.arms
        if dead[arm] < MOST_DEAD
    }
    if not known:
        raise ValueError(f"Expected a form with fewer than {MOST_DEAD:.0%} dead, got {dead}.")
    return max(known, key=lambda arm: known[arm])


def cells_of(grid: Grid, arms: Sequence[str] | None) -> list[Cell]:
    """Return the cells of arms, or of all; the first seed's of every game come first.

    Raises:
        ValueError: If the grid has no such arm.
    """
    unknown = sorted(set(arms or ()) - set(grid.arms))
    if unknown:
        raise ValueError(f"Expected --arms among {', '.join(grid.arms)}, got {', '.join(unknown)}.")
    cells = [cell for cell in grid.cells() if arms is None or cell.arm in arms]
    return sorted(cells, key=lambda cell: grid.seeds.index(cell.seed))


def table(output: Path, grid: Grid) -> str:
    """Return the tables of what there is."""
    rng = np.random.default_rng(0)
    asked = (grid.probe or {})["protocol"]
    tables = []
    for kind in KINDS:
        found = records(output, kind)
        there = {each["arm"] for each in found}
        arms = [arm for arm in grid.arms if arm in there]
        for each in found:
            each["f1"] = {name: f1 for name, f1 in each["f1"].items() if name in asked}
        if arms:
            tables += [forms_table(kind, found, arms), *compared(kind, found, arms, rng)]
    return "\n\n".join(tables)


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("agents", "pretrain", "choose", "table"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of what is trained")
    parser.add_argument("--output", type=Path, required=True, help="folder of one file per cell")
    parser.add_argument("--grid", type=Path, default=GRID, help="TOML file of the arms")
    parser.add_argument("--arms", nargs="+", help="arms of `pretrain`, by default all")
    parser.add_argument("--budget", default=BUDGET, help="how long to pretrain")
    parser.add_argument(
        "--n-frames", type=int, default=N_FRAMES, help="number of frames to pretrain on"
    )
    arguments = parser.parse_args()
    grid = read_grid(arguments.grid)
    if arguments.stage in ("choose", "table"):
        shown = chosen if arguments.stage == "choose" else table
        print(shown(arguments.output, grid))
        return
    torch.set_num_threads(1)
    for folder in (arguments.runs, arguments.output):
        for kind in KINDS:
            (folder / kind).mkdir(parents=True, exist_ok=True)
    if arguments.stage == "agents":
        agents(arguments.runs, arguments.output)
    else:
        pretrain(cells_of(grid, arguments.arms), grid, arguments)


if __name__ == "__main__":
    main()
