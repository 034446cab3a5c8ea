"""How soon does PPO's value function learn beside the loss, at other weights and bounds?

Trains for a few thousand steps, on seeds that are not reported, and notes how much of the returns'
variance the value function explains. Several processes may share the folders.

    python experiments/early_value.py run --runs RUNS --output experiments/results/early_value
    python experiments/early_value.py table --output experiments/results/early_value
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce import InfoNCEExtractor, make_atari_vec_env
from rl_infonce.report.statistics import t_difference, t_interval
from rl_infonce.runs.claim import claimed
from rl_infonce.runs.durable import replace_text
from rl_infonce.runs.run_directory import software

GAMES = ("breakout", "assault", "carnival")
ARMS: dict[str, dict[str, Any]] = {
    "baseline": {"infonce_coef": 0.0},
    "coef_01": {"infonce_coef": 0.1},
    "coef_001": {"infonce_coef": 0.01},
    "coef_0001": {"infonce_coef": 0.001},
    "ratio_03": {"infonce_coef": 0.1, "max_grad_ratio": 0.3},
    "ratio_01": {"infonce_coef": 0.1, "max_grad_ratio": 0.1},
    "ratio_01_of_001": {"infonce_coef": 0.01, "max_grad_ratio": 0.1},
}
SEEDS, N_STEPS, N_ENVS = (100, 101, 102, 103, 104), 20_480, 8
CURVES = {"value": "train/explained_variance", "accuracy": "infonce/accuracy_k4"}


class Notes(BaseCallback):
    """Keeps what the update before each rollout has logged."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def _on_rollout_start(self) -> None:
        logged = self.logger.name_to_value
        found = {name: float(logged[key]) for name, key in CURVES.items() if key in logged}
        if found:
            self.rows.append({"step": float(self.num_timesteps), **found})

    def _on_step(self) -> bool:
        return True


def train(game: str, arm: str, seed: int, n_steps: int) -> dict[str, Any]:
    """Return the curves of a run."""
    notes = Notes()
    model = PPO(
        "CnnPolicy",
        make_atari_vec_env(game, n_envs=N_ENVS, seed=seed),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        policy_kwargs={
            "features_extractor_class": InfoNCEExtractor,
            "features_extractor_kwargs": ARMS[arm],
            "net_arch": [],
        },
        seed=seed,
        device="cpu",
    )
    model.learn(n_steps, callback=notes)
    about = {"game": game, "arm": arm, "seed": seed, "n_steps": n_steps}
    return {**about, "rows": notes.rows, **software()}


def second_half(run: dict[str, Any], curve: str) -> float:
    """Return a curve's mean over the second half of a run; nan without the curve."""
    values = [
        row[curve] for row in run["rows"] if row["step"] > run["n_steps"] / 2 and curve in row
    ]
    return float(np.mean(values)) if values else float("nan")


def table(output: Path) -> str:
    """Return, by game and arm, what the second half of the runs explains, and what it retrieves."""
    runs = [json.loads(path.read_text()) for path in sorted(output.glob("*.json"))]
    lines = [
        "| game | arm | runs | explained variance | less baseline | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for game, arm in product(GAMES, ARMS):
        own = {run["seed"]: run for run in runs if (run["game"], run["arm"]) == (game, arm)}
        if not own:
            continue
        value = {seed: second_half(run, "value") for seed, run in own.items()}
        base = {
            run["seed"]: second_half(run, "value")
            for run in runs
            if (run["game"], run["arm"]) == (game, "baseline")
        }
        pairs = sorted({*value} & {*base}) if arm != "baseline" else []
        less = (
            t_difference(
                {game: [value[seed] for seed in pairs]},
                {game: [base[seed] for seed in pairs]},
                paired=True,
            )
            if len(pairs) > 1
            else None
        )
        accuracy = np.mean([second_half(run, "accuracy") for run in own.values()])
        cells = (
            _shown(t_interval(list(value.values())) if len(value) > 1 else None, "{:.2f}"),
            "-" if arm == "baseline" else _shown(less, "{:+.2f}"),
            "-" if np.isnan(accuracy) else f"{accuracy:.2f}",
        )
        lines.append(f"| {game} | {arm} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(interval: Any, form: str) -> str:
    if interval is None:
        return "missing"
    value, low, high = (form.format(each) for each in interval[:3])
    return f"{value} ({low} to {high})"


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("run", "table"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for locks")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=GAMES)
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=tuple(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--n-steps", type=int, default=N_STEPS)
    arguments = parser.parse_args()
    if arguments.stage == "run":
        torch.set_num_threads(1)
        for folder in (arguments.runs, arguments.output):
            folder.mkdir(parents=True, exist_ok=True)
        for seed, game, arm in product(arguments.seeds, arguments.games, arguments.arms):
            path = arguments.output / f"{game}-{arm}-{seed}.json"
            with claimed(path, arguments.runs) as is_missing:
                if is_missing:
                    run = train(game, arm, seed, arguments.n_steps)
                    replace_text(path, json.dumps(run) + "\n")
                    print(path, flush=True)
    print(table(arguments.output))


if __name__ == "__main__":
    main()
