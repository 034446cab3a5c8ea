"""What does InfoNCE do to the return of PPO on MinAtar, where many seeds are cheap?

MinAtar's games (Young and Tian 2019) are 10x10 cells with a channel per kind of object; each cell
becomes 4x4 pixels here, as NatureCNN needs 36. Arms are those of ppo_arms.toml. Several processes
may share the folders; what is there is not trained again. The second pair of commands is what chose
the default coefficient, on seeds of its own.

    python experiments/minatar_arms.py train --runs RUNS --output experiments/results/minatar_arms
    python experiments/minatar_arms.py table --output experiments/results/minatar_arms

    python experiments/minatar_arms.py train --candidates --runs RUNS --output CANDIDATES
    python experiments/minatar_arms.py table --candidates --output CANDIDATES
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from minatar.gym import BaseEnv
from regime_training import episodes_of
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from rl_infonce import InfoNCECallback, InfoNCEExtractor
from rl_infonce.files.durable import replace_text
from rl_infonce.report.bootstrap import bootstrap_improvement
from rl_infonce.report.curves import area_under_curve, final_return
from rl_infonce.report.formatting import interval_words
from rl_infonce.report.power import detectable_difference
from rl_infonce.report.statistics import Interval, t_difference, t_interval
from rl_infonce.report.table import markdown_table
from rl_infonce.runs.claim import claimed
from rl_infonce.runs.software import software
from rl_infonce.training.rl_zoo import constant_ppo

# The same in all games; by default it would be the number of channels, as if they were frames.
HORIZONS = (4,)


class Arm(NamedTuple):
    """Settings of the loss and of what it meets, and the arm it is compared with."""

    loss: dict[str, Any]
    decoupled: bool = False
    max_grad_norm: float = 0.5
    baseline: str = "baseline"


_STRONG: dict[str, Any] = {"horizons": HORIZONS, "infonce_coef": 0.1}
ARMS = {
    "baseline": Arm({"infonce_coef": 0.0}),
    "infonce": Arm({"horizons": HORIZONS}),
    "placebo": Arm({"horizons": HORIZONS, "positives": "shuffled"}),
}
CANDIDATES = {
    "baseline": Arm({"infonce_coef": 0.0}),
    "coef_01": Arm(_STRONG),
    "coef_003": Arm({**_STRONG, "infonce_coef": 0.03}),
    "coef_001": Arm({**_STRONG, "infonce_coef": 0.01}),
    "ratio_01": Arm({**_STRONG, "max_grad_ratio": 0.1}),
    "mlp_01": Arm({**_STRONG, "critic": "mlp"}),
    "local_01": Arm({**_STRONG, "critic": "bilinear", "terms": ("local_local",)}),
    "stdim_01": Arm({**_STRONG, "preset": "spatial_cpc"}),
    "stdim_001": Arm({**_STRONG, "preset": "spatial_cpc", "infonce_coef": 0.01}),
    "decoupled_01": Arm(_STRONG, decoupled=True),
    "placebo_01": Arm({**_STRONG, "positives": "shuffled"}),
    "unclipped_0": Arm({"infonce_coef": 0.0}, max_grad_norm=1e6),
    "unclipped_01": Arm(_STRONG, max_grad_norm=1e6, baseline="unclipped_0"),
}


class Study(NamedTuple):
    """What is trained, and which seeds."""

    games: tuple[str, ...]
    arms: dict[str, Arm]
    placebo: str
    seeds: tuple[int, ...]


REPORTED = Study(("breakout", "space_invaders"), ARMS, "placebo", tuple(range(10)))
CHOOSING = Study(("breakout",), CANDIDATES, "placebo_01", tuple(range(100, 105)))
N_STEPS, N_ENVS, PIXELS = 200_000, 8, 4
SCORES: dict[str, Callable[..., float]] = {
    "mean over training": area_under_curve,
    "last tenth": final_return,
}


class CellsAsPixels(gym.ObservationWrapper[npt.NDArray[np.uint8], Any, Any]):
    """Shows [10, 10, C] cells as a channels-first image of 4x4 pixels each."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        height, width, n_channels = env.observation_space.shape or ()
        shape = (n_channels, height * PIXELS, width * PIXELS)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def observation(self, observation: Any) -> npt.NDArray[np.uint8]:
        """Return [C, 40, 40]."""
        cells = observation.transpose(2, 0, 1).astype(np.uint8) * np.uint8(255)
        image: npt.NDArray[np.uint8] = cells.repeat(PIXELS, axis=1).repeat(PIXELS, axis=2)
        return image


def make_env(game: str, seed: int) -> VecEnv:
    """Return a game, several times."""
    return make_vec_env(lambda: CellsAsPixels(BaseEnv(game)), n_envs=N_ENVS, seed=seed)


def make_model(env: VecEnv, arm: Arm, seed: int) -> PPO:
    """Return an untrained agent."""
    with warnings.catch_warnings():  # that stacks overlap at this horizon: nothing is stacked here
        warnings.filterwarnings("ignore", "horizons=")
        return PPO(
            "CnnPolicy",
            env,
            **constant_ppo(),
            policy_kwargs={
                "features_extractor_class": InfoNCEExtractor,
                "features_extractor_kwargs": {"pairs_from": "buffer", **arm.loss},
                "net_arch": [],
            },
            seed=seed,
            device="cpu",
            max_grad_norm=arm.max_grad_norm,
        )


def train(study: Study, game: str, arm: str, seed: int, n_steps: int) -> dict[str, Any]:
    """Return the episodes of a training, in the order of their ends."""
    env = make_env(game, seed)
    model = make_model(env, study.arms[arm], seed)
    callback = InfoNCECallback(decoupled=True) if study.arms[arm].decoupled else None
    start = time.perf_counter()
    model.learn(n_steps, callback=callback)
    seconds = round(time.perf_counter() - start, 1)
    episodes = sorted(episodes_of(env))
    about = {"game": game, "arm": arm, "seed": seed, "n_steps": n_steps, "seconds": seconds}
    return {**about, "n_steps_done": model.num_timesteps, "episodes": episodes, **software()}


def train_all(study: Study, runs: Path, output: Path, n_steps: int) -> None:
    """Train every run that has no file yet, all arms of a seed before the next seed."""
    for seed, game, arm in product(study.seeds, study.games, study.arms):
        path = output / f"{game}-{arm}-{seed}.json"
        with claimed(path, runs) as is_missing:
            if is_missing:
                replace_text(path, json.dumps(train(study, game, arm, seed, n_steps)) + "\n")
                print(path, flush=True)


def scores(study: Study, output: Path, of: str) -> dict[tuple[str, str], dict[int, float]]:
    """Return game and arm -> seed -> score.

    Raises:
        ValueError: If runs have other budgets than most; they are named.
    """
    runs = {path.name: json.loads(path.read_text()) for path in sorted(output.glob("*.json"))}
    check_same_budget({name: run["n_steps"] for name, run in runs.items()})
    planned = product(study.games, study.arms)
    found: dict[tuple[str, str], dict[int, float]] = {each: {} for each in planned}
    for run in runs.values():
        steps, returns = zip(*run["episodes"], strict=True)
        score = SCORES[of](steps, returns, run["n_steps"], n_steps_done=run["n_steps_done"])
        found[run["game"], run["arm"]][run["seed"]] = score
    return found


def check_same_budget(n_steps: Mapping[str, int]) -> None:
    """Raise unless all files are of runs of the same number of steps."""
    if len(set(n_steps.values())) > 1:
        ((usual, _),) = Counter(n_steps.values()).most_common(1)
        others = [f"{n} in {name}" for name, n in n_steps.items() if n != usual]
        raise ValueError(
            f"Expected runs of {usual} steps, as most of them are, got {', '.join(others)}. Move "
            "those away: runs of different lengths have no common mean."
        )


def table(study: Study, output: Path, of: str) -> str:
    """Return the return of each arm, and the differences to the arms it is compared with."""
    found = scores(study, output, of)
    header = ["game", "arm", "runs", f"return, {of}", "less baseline", "found in 4 of 5"]
    header += ["less placebo", "beats baseline"]
    rows = []
    for (game, arm), own in found.items():
        mean = _shown(t_interval(list(own.values())), ".2f") if len(own) > 1 else "missing"
        baseline, is_off = study.arms[arm].baseline, study.arms[arm].loss.get("infonce_coef") == 0
        less = [
            "-" if is_off or arm == other else _less(own, found[game, other])
            for other in (baseline, study.placebo)
        ]
        least = "-" if is_off else _detectable(own, found[game, baseline])
        better = "-" if is_off else _improvement(own, found[game, baseline])
        rows.append([game, arm, str(len(own)), mean, less[0], least, less[1], better])
    return markdown_table(header, rows)


def _less(own: Mapping[int, float], other: Mapping[int, float]) -> str:
    pair = _paired(own, other)
    return _shown(None if pair is None else t_difference(*pair), "+.2f")


def _paired(
    own: Mapping[int, float], other: Mapping[int, float]
) -> tuple[dict[str, list[float]], dict[str, list[float]]] | None:
    """Return the scores of the seeds that both have; None if they are fewer than two."""
    seeds = sorted({*own} & {*other})
    if len(seeds) < 2:
        return None
    return {"game": [own[seed] for seed in seeds]}, {"game": [other[seed] for seed in seeds]}


def _detectable(own: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Return the true difference that pairs which scatter like these find in 4 of 5."""
    pair = _paired(own, other)
    least = None if pair is None else detectable_difference(*pair)
    return "missing" if least is None else f"{least:.2f}"


def _improvement(own: Mapping[int, float], other: Mapping[int, float]) -> str:
    pair = _paired(own, other)
    if pair is None:
        return "missing"
    rng = np.random.default_rng(0)
    return _shown(bootstrap_improvement(*pair, rng=rng), ".2f")


def _shown(interval: Interval | None, form: str) -> str:
    return "missing" if interval is None else interval_words(interval, form)


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("train", "table"))
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        help="folder where processes lock what they train",
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--n-steps", type=int, default=N_STEPS)
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--arms", nargs="+", help="arms to train (default: all)")
    parser.add_argument(
        "--candidates", action="store_true", help="take the arms that chose the weight of the loss"
    )
    arguments = parser.parse_args()
    study = CHOOSING if arguments.candidates else REPORTED
    if arguments.seeds:
        study = study._replace(seeds=tuple(arguments.seeds))
    if arguments.stage == "table":
        for of in SCORES:
            print(table(study, arguments.output, of), end="\n\n")
        return
    if arguments.arms:
        study = study._replace(arms={name: study.arms[name] for name in arguments.arms})
    torch.set_num_threads(1)
    for folder in (arguments.runs, arguments.output):
        folder.mkdir(parents=True, exist_ok=True)
    train_all(study, arguments.runs, arguments.output, arguments.n_steps)


if __name__ == "__main__":
    main()
