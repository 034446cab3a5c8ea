"""What do PPO's features know of the game, with and without InfoNCE?

Trains stock PPO and PPO + `InfoNCEExtractor()` on several games and seeds, probes the features of
each beside those of its untrained network, and prints the table. All stages resume; several
processes may work on one folder.

    python experiments/ppo_features.py train --runs RUNS
    python experiments/ppo_features.py probe --runs RUNS --output experiments/results/ppo_features
    python experiments/ppo_features.py table --output experiments/results/ppo_features
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO

from rl_infonce import InfoNCEExtractor, make_atari_vec_env
from rl_infonce.atari import collect
from rl_infonce.probing import (
    PROTOCOLS,
    LabelledObservations,
    ProbeScores,
    extract_features,
    majority_scores,
    make_task,
    probe_features,
)
from rl_infonce.report.statistics import t_interval_over_runs
from rl_infonce.runs.claim import claimed
from rl_infonce.sb3.features import feature_function

GAMES = ("pong", "breakout", "boxing")
SEEDS = (0, 1, 2)
N_STEPS, N_ENVS = 200_000, 8
N_FRAMES = 50_000
# Without `net_arch` SB3 would give every extractor but its own NatureCNN two more layers per head.
ARMS: dict[str, dict[str, Any]] = {
    "stock": {"net_arch": []},
    "infonce": {"net_arch": [], "features_extractor_class": InfoNCEExtractor},
}
COLUMNS = ("majority", "untrained", *ARMS)


def make_model(game: str, arm: str, seed: int) -> PPO:
    """Return an untrained PPO with RL Zoo's Atari settings, its schedules held at their starts."""
    return PPO(
        "CnnPolicy",
        make_atari_vec_env(game, n_envs=N_ENVS, seed=seed, n_threads=1),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        policy_kwargs=ARMS[arm],
        seed=seed,
    )


def train(runs: Path, n_steps: int) -> None:
    """Train every run that has no model yet."""
    for seed in SEEDS:
        for game in GAMES:
            for arm in ARMS:
                path = runs / f"{game}-{arm}-{seed}.zip"
                with claimed(path, runs) as missing:
                    if missing:
                        model = make_model(game, arm, seed)
                        model.learn(n_steps)
                        model.save(path.with_suffix(".part.zip"))
                        os.replace(path.with_suffix(".part.zip"), path)
                        print(path, flush=True)


def labelled_frames(runs: Path, game: str, n_frames: int) -> LabelledObservations:
    """Return the stacks of a random agent, collected once; the same for all models of a game."""
    folder = runs / f"{game}-frames"
    frames = collect(game, n_frames, folder=folder, views=("agent",), seed=0, n_workers=1)
    return frames.labelled("agent", "corrected")


def load_model(runs: Path, game: str, column: str, seed: int) -> PPO | None:
    """Return a trained or untrained model, None if it has not been trained yet."""
    if column == "untrained":
        return make_model(game, "stock", seed)
    path = runs / f"{game}-{column}-{seed}.zip"
    return PPO.load(path) if path.exists() else None


def probe(runs: Path, output: Path, n_frames: int) -> None:
    """Probe every model that has no scores yet, and the networks before training."""
    for game in GAMES:
        labelled = labelled_frames(runs, game, n_frames)
        task = make_task(labelled, np.random.default_rng(0))
        with claimed(output / f"{game}-majority.json", runs) as missing:
            if missing:
                of_majority = {protocol: majority_scores(task) for protocol in PROTOCOLS}
                write(output / f"{game}-majority.json", of_majority)
        for seed, column in product(SEEDS, COLUMNS[1:]):
            path = output / f"{game}-{column}-{seed}.json"
            with claimed(path, runs) as missing:
                model = load_model(runs, game, column, seed) if missing else None
                if model is not None:
                    features = extract_features(feature_function(model), labelled.observations)
                    scores = {
                        protocol: probe_features(features, task, protocol=protocol)[0]
                        for protocol in PROTOCOLS
                    }
                    write(path, scores)
                    print(path, flush=True)


def write(path: Path, scores: dict[str, ProbeScores]) -> None:
    """Write scores by protocol, in one piece."""
    text = json.dumps({protocol: each.to_json() for protocol, each in scores.items()})
    path.with_suffix(".part").write_text(text + "\n")
    os.replace(path.with_suffix(".part"), path)


def read(output: Path, game: str, column: str, protocol: str) -> dict[int, ProbeScores]:
    """Return the scores by seed; the majority class counts as seed 0."""
    found = {}
    for path in output.glob(f"{game}-{column}*.json"):
        seed = 0 if column == "majority" else int(path.stem.rsplit("-", 1)[1])
        found[seed] = ProbeScores.from_json(json.loads(path.read_text())[protocol])
    return found


def table(output: Path) -> str:
    """Return mean F1 per game, arm and protocol, and the paired difference of the two arms."""
    blocks = []
    for protocol in PROTOCOLS:
        lines = [
            f"| {protocol} | {' | '.join(COLUMNS)} | infonce - stock, paired by seed |",
            "|---|" + "---|" * (len(COLUMNS) + 1),
        ]
        differences: dict[str, list[float]] = {}
        for game in GAMES:
            by_arm = {column: read(output, game, column, protocol) for column in COLUMNS}
            seeds = sorted(set(by_arm["stock"]) & set(by_arm["infonce"]))
            pairs = [
                by_arm["infonce"][seed].mean.f1_weighted - by_arm["stock"][seed].mean.f1_weighted
                for seed in seeds
            ]
            differences[game] = pairs
            cells = [_cell(by_arm[column]) for column in COLUMNS]
            shown = ", ".join(f"{pair:+.3f}" for pair in pairs) or "missing"
            lines.append(f"| {game} | {' | '.join(cells)} | {shown} |")
        lines.append(f"| all | {' | '.join('' for _ in COLUMNS)} | {_interval(differences)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _cell(scores: dict[int, ProbeScores]) -> str:
    figures = [each.mean.f1_weighted for each in scores.values()]
    if not figures:
        return "missing"
    if len(figures) == 1:
        return f"{figures[0]:.3f}"
    return f"{np.mean(figures):.3f} ({min(figures):.3f} to {max(figures):.3f})"


def _interval(differences: dict[str, list[float]]) -> str:
    """Return the mean over games of the paired differences, with its interval for other seeds."""
    enough = {game: pairs for game, pairs in differences.items() if len(pairs) > 1}
    if not enough:
        return "missing"
    mean, low, high = t_interval_over_runs(enough)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f}), {sum(map(len, enough.values()))} pairs"


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stage", choices=("train", "probe", "table"))
    parser.add_argument("--runs", type=Path, help="folder of models and frames")
    parser.add_argument("--output", type=Path, help="folder of scores")
    parser.add_argument("--n-steps", type=int, default=N_STEPS)
    parser.add_argument("--n-frames", type=int, default=N_FRAMES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for folder in (arguments.runs, arguments.output):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    if arguments.stage == "train":
        train(arguments.runs, arguments.n_steps)
    elif arguments.stage == "probe":
        probe(arguments.runs, arguments.output, arguments.n_frames)
    else:
        print(table(arguments.output))


if __name__ == "__main__":
    main()
