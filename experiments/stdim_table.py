"""The table of Anand et al. 2019: what do pretrained encoders know of 22 games?

Pretrains an encoder per game, objective and seed on 100,000 frames of a random agent, and probes it
on 50,000 others, under both protocols and with the paper's labels. One file per cell; finished
cells are kept, one that fails does not stop the others, and several processes may share the
folders. Then prints the table beside the published one, whose figures are single runs. `infonce`
stands beside their Global-T-DIM, which is the nearest to it and not the same: see `GlobalInfoNCE`.

Brackets hold 95 % intervals of Student's t: of a game's figure over seeds, where there are several,
and of a difference over games. Means over games and of categories have none.

    python experiments/stdim_table.py run --budget "250k frames" --runs RUNS --output OUTPUT
    python experiments/stdim_table.py table --output OUTPUT
    python experiments/stdim_table.py seen --output FILE

The last line counts the states of the probe's test part that pretraining has seen.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_infonce.atari.cache import cached_frames
from rl_infonce.atari.games import resolve_game
from rl_infonce.atari.labelled_frames import LabelledFrames
from rl_infonce.atari.labels import labels_hash, load_labels
from rl_infonce.atari.published import published_scores
from rl_infonce.device import processor_name, usable_device
from rl_infonce.files.durable import replace_text
from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.encoder_file import load_encoder
from rl_infonce.probing import (
    ProbeScores,
    extract_features,
    majority_scores,
    make_task,
    probe_features,
)
from rl_infonce.report.formatting import interval_words
from rl_infonce.report.statistics import t_interval
from rl_infonce.report.table import markdown_table
from rl_infonce.runs.claim import claimed
from rl_infonce.runs.software import software
from rl_infonce.scoring.probe_runner import TASKS
from rl_infonce.training.atari_encoder import EncoderPlan, pretrain_encoder

PROTOCOLS = ("anand2019", "converged")
GAMES = ("pong", "breakout", "boxing", "ms_pacman", "space_invaders", "freeway")
OBJECTIVES_BY_DEFAULT = ("infonce", "cpc", "stdim", "positional_dim", "supervised")
ROWS = (
    "majority",
    "random",
    "static_dim",
    "vae",
    "pixel_pred",
    "infonce",
    "jsd_stdim",
    "cpc",
    "stdim",
    "positional_dim",
    "supervised",
)
COMPARED = (
    ("stdim", "random"),
    ("infonce", "random"),
    ("stdim", "infonce"),
    ("positional_dim", "random"),
    ("positional_dim", "stdim"),
)
PUBLISHED = {
    "majority": "maj-clf",
    "random": "random-cnn",
    "infonce": "global-t-dim",
    "cpc": "cpc",
    "stdim": "st-dim",
    "supervised": "supervised",
    "vae": "vae",
    "pixel_pred": "pixel-pred",
    "static_dim": "static-dim",
    "jsd_stdim": "jsd-st-dim",
}
LABELS, POLICY = "anand2019", "random_without_noop"
PROBE_SEED, PRETRAINING_SEED = 0, 1


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    budget: str = "250k frames"
    n_frames: int = 100_000
    n_probe_frames: int = 50_000


@dataclass(frozen=True)
class Cell:
    """One encoder on one game."""

    game: str
    objective: str
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.game}-{self.objective}-{self.seed}"


def run(cells: Sequence[Cell], sizes: Sizes, runs: Path, output: Path) -> list[str]:
    """Fill the cells that have no file yet; name those that cannot be filled, and print why."""
    paths = {cell: output / f"{cell.name}.json" for cell in cells}
    for path in paths.values():
        check_sizes(path, sizes)
    failed = []
    for cell, path in paths.items():
        with claimed(path, runs) as is_missing:
            if is_missing:
                try:
                    content = fill(cell, sizes, runs)
                    replace_text(path, json.dumps(content, allow_nan=False) + "\n")
                    print(path, flush=True)
                except (ValueError, ArithmeticError, MemoryError) as error:
                    print(f"{cell.name}: {error}", file=sys.stderr, flush=True)
                    failed.append(cell.name)
    return failed


def check_sizes(path: Path, sizes: Sizes) -> None:
    """Raise unless a cell that is filled has the sizes asked for."""
    if path.exists():
        found = sizes_of(json.loads(path.read_text()))
        if found != asdict(sizes):
            raise ValueError(
                f"Expected {path} with {asdict(sizes)}, got {found}. Choose another --output."
            )


def sizes_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a cell's file."""
    return {each.name: content[each.name] for each in fields(Sizes)}


def fill(cell: Cell, sizes: Sizes, runs: Path) -> dict[str, Any]:
    """Pretrain if there is something to train, probe, and return what the file says."""
    encoder: nn.Module | None = None
    training: dict[str, Any] = {}
    if cell.objective == "random":
        encoder = STDIMEncoder(torch.Generator().manual_seed(cell.seed))
    elif cell.objective != "majority":
        encoder, training = pretrained(cell, sizes, runs)
    return {
        **asdict(cell),
        **asdict(sizes),
        **software(),
        "labels": LABELS,
        "labels_hash": labels_hash(cell.game, LABELS),
        "hardware": {
            "cpu": processor_name(),
            "torch_threads": torch.get_num_threads(),
            "device": str(usable_device("auto")),
        },
        "pretraining": training,
        "scores": {p: s.to_json() for p, s in probed(cell, encoder, sizes).items()},
    }


def pretrained(cell: Cell, sizes: Sizes, runs: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return a trained encoder, and how its training went."""
    plan = EncoderPlan(
        cell.game,
        cell.objective,
        budget=sizes.budget,
        n_frames=sizes.n_frames,
        policy=POLICY.replace("_", "-"),
        data_seed=PRETRAINING_SEED,
        labels=LABELS if cell.objective == "supervised" else None,
        seed=cell.seed,
    )
    folder = runs / cell.name
    folder.mkdir(exist_ok=True)
    path, progress = pretrain_encoder(plan, folder)
    return load_encoder(path), {"settings": asdict(plan.settings()), **asdict(progress)}


def probed(cell: Cell, encoder: nn.Module | None, sizes: Sizes) -> dict[str, ProbeScores]:
    """Return the scores under both protocols; without an encoder, of the majority class."""
    frames = frames_of(cell.game, sizes.n_probe_frames, PROBE_SEED)
    labelled = frames.labelled("screen", LABELS)
    features = None
    if encoder is not None:
        features = extract_features(encoder.to(usable_device("auto")), labelled.observations)
    scores = {}
    for protocol in PROTOCOLS:
        task = make_task(labelled, np.random.default_rng(cell.seed), **TASKS[protocol])
        scores[protocol] = (
            majority_scores(task, seed=cell.seed)
            if features is None
            else probe_features(
                features, task, protocol=protocol, seed=cell.seed, device=usable_device("auto")
            )[0]
        )
    return scores


Found = dict[tuple[str, str], list[ProbeScores]]


def contents(output: Path) -> list[dict[str, Any]]:
    """Return what all files say.

    Raises:
        ValueError: If cells differ in their sizes, or cells of a game in their labels.
    """
    found: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    for path in sorted(output.glob("*.json")):
        content = json.loads(path.read_text())
        labels = f"labels of {content['game']}"
        for what, value in (("sizes", sizes_of(content)), (labels, content["labels_hash"])):
            if value != first.setdefault(what, value):
                raise ValueError(
                    f"Expected the {what} in {path} to be {first[what]} as in the files before it, "
                    f"got {value}. Keep the cells of another table in another folder."
                )
        found.append(content)
    return found


def read(output: Path, protocol: str) -> Found:
    """Return the scores of all files by game and objective, one per seed; see `contents`."""
    found: Found = {}
    for content in contents(output):
        scores = ProbeScores.from_json(content["scores"][protocol])
        found.setdefault((content["game"], content["objective"]), []).append(scores)
    return found


def table(output: Path) -> str:
    """Return both protocols: games and categories by objective, beside the published figures."""
    blocks = []
    for protocol in PROTOCOLS:
        found = read(output, protocol)
        games = sorted({game for game, _ in found})
        objectives = [row for row in ROWS if any(key[1] == row for key in found)]
        rows = []
        for game in games:
            scores = (found.get((game, each), []) for each in objectives)
            rows.append([game, *(shown([s.mean.f1_weighted for s in own]) for own in scores)])
            if protocol == "anand2019":
                rows.append([f"*{game}, published*", *published([game], objectives)])
        rows.append([f"mean of {len(games)}", *means(found, games, objectives)])
        if protocol == "anand2019":
            rows.append(["*mean, published*", *published(games, objectives)])
        for category in sorted({c for each in found.values() for s in each for c in s.categories}):
            cells = (of_category(found, games, each, category) for each in objectives)
            rows.append([category.replace("_", " "), *cells])
        blocks += [markdown_table([protocol, *objectives], rows), differences(found, games)]
    return "\n\n".join(blocks)


def differences(found: Found, games: Sequence[str]) -> str:
    """Return what one objective gains over another, per game and in the mean of all games."""
    rows = []
    for one, other in COMPARED:
        gains = {
            game: float(
                np.mean([s.mean.f1_weighted for s in found[game, one]])
                - np.mean([s.mean.f1_weighted for s in found[game, other]])
            )
            for game in games
            if {(game, one), (game, other)} <= set(found)
        }
        cells = [f"{gains[game]:+.3f}" if game in gains else "missing" for game in games]
        total = "missing"
        if len(gains) == len(games) > 1:
            total = interval_words(t_interval(list(gains.values())), "+.3f")
        rows.append([f"{one} - {other}", *cells, total])
    return markdown_table(["difference", *games, "mean, 95 % t interval over games"], rows)


def published(games: Sequence[str], rows: Sequence[str]) -> list[str]:
    """Return the published mean over games of each objective."""
    figures = [published_scores(game) for game in games]
    return [
        f"{np.mean([each[PUBLISHED[row]] for each in figures]):.2f}" if row in PUBLISHED else "-"
        for row in rows
    ]


def shown(figures: Sequence[float]) -> str:
    """Return the mean over seeds, of several with its 95 % t interval."""
    if not figures:
        return "missing"
    if len(figures) == 1:
        return f"{figures[0]:.3f}"
    return interval_words(t_interval(figures), ".3f")


def means(found: Found, games: Sequence[str], rows: Sequence[str]) -> Iterator[str]:
    """Yield each objective's mean over games; missing unless it has all of them."""
    for row in rows:
        figures = [
            np.mean([s.mean.f1_weighted for s in found[game, row]])
            for game in games
            if (game, row) in found
        ]
        yield f"{np.mean(figures):.3f}" if len(figures) == len(games) else "missing"


def of_category(found: Found, games: Sequence[str], row: str, category: str) -> str:
    """Return an objective's mean over the games in which any encoder was probed for a category."""
    having = {
        game for (game, _), each in found.items() if any(category in s.categories for s in each)
    }
    figures = []
    for game in games:
        scores = [s for s in found.get((game, row), []) if category in s.categories]
        if scores:
            figures.append(np.mean([s.categories[category].f1_weighted for s in scores]))
    return f"{np.mean(figures):.3f}" if len(figures) == len(having) else "missing"


def seen(games: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """Return for each game how many test frames have the whole RAM of a frame of pretraining.

    The test part is that of `anand2019` with split 0, whose own duplicates are out already.
    """
    counts = {}
    for game in games:
        known = {ram.tobytes() for ram in frames_of(game, sizes.n_frames, PRETRAINING_SEED).ram}
        probe = frames_of(game, sizes.n_probe_frames, PROBE_SEED)
        task = make_task(
            probe.labelled("screen", LABELS), np.random.default_rng(0), **TASKS["anand2019"]
        )
        n_seen = sum(ram.tobytes() in known for ram in probe.ram[task.split.test])
        counts[game] = {"seen": n_seen, "test": len(task.split.test)}
        print(game, counts[game], file=sys.stderr, flush=True)
    lengths = {"n_frames": sizes.n_frames, "n_probe_frames": sizes.n_probe_frames}
    return {**lengths, **software(), "games": counts}


def frames_of(game: str, n_frames: int, seed: int) -> LabelledFrames:
    """Return the frames of a seed, collected if they are not in the cache."""
    return cached_frames(game, n_frames, seed=seed, policy=POLICY, view="screen")


def seen_table(content: Mapping[str, Any]) -> str:
    """Return the share of test frames that pretraining has seen, per game."""
    counts = content["games"]
    games = sorted(counts)
    shares = [f"{counts[game]['seen'] / counts[game]['test']:.1%}" for game in games]
    return markdown_table(["test part", *games], [["seen in pretraining", *shares]])


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("run", "table", "seen"))
    parser.add_argument("--games", nargs="+", default=GAMES, type=resolve_game, metavar="GAME")
    parser.add_argument(
        "--objectives",
        nargs="+",
        default=("majority", "random", *OBJECTIVES_BY_DEFAULT),
        choices=ROWS,
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=(0,))
    parser.add_argument("--budget", default=Sizes.budget)
    parser.add_argument("--n-frames", type=int, default=Sizes.n_frames)
    parser.add_argument("--n-probe-frames", type=int, default=Sizes.n_probe_frames)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of checkpoints")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="folder of one file per cell; for `seen`, the file to write",
    )
    arguments = parser.parse_args()
    if arguments.stage == "table":
        print(table(arguments.output))
        return
    for game in arguments.games:
        load_labels(game, LABELS)
    sizes = Sizes(arguments.budget, arguments.n_frames, arguments.n_probe_frames)
    if arguments.stage == "seen":
        content = seen(arguments.games, sizes)
        replace_text(arguments.output, json.dumps(content, indent=1) + "\n")
        print(seen_table(content))
        return
    for folder in (arguments.runs, arguments.output):
        os.makedirs(folder, exist_ok=True)
    cells = [
        Cell(*each) for each in product(arguments.games, arguments.objectives, arguments.seeds)
    ]
    failed = run(cells, sizes, arguments.runs, arguments.output)
    if failed:
        raise SystemExit(f"Not filled, for the reasons above: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
