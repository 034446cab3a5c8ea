"""Play whole episodes with the agent of a run on another environment than an Atari game.

The run's record says how the agent is built, so that its weights are read without pickle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy

from rl_infonce.agents.game_evaluation import Episode, noting
from rl_infonce.agents.model_zip import read_model_zip
from rl_infonce.agents.saved_agent import saved_exploration_rate
from rl_infonce.agents.saved_statistics import load_statistics
from rl_infonce.checks import check_number
from rl_infonce.files.digests import sha256_of_file
from rl_infonce.runs.evaluation_file import evaluation_record
from rl_infonce.runs.run_directory import now, software
from rl_infonce.training.plan import TrainingPlan, planned
from rl_infonce.training.run_model import make_model
from rl_infonce.training.training_run import pretrained_file


@dataclass(frozen=True)
class RunEvaluationPlan:
    """A run's model and how it is played; the errors name the flags of `rl-infonce evaluate`.

    `env` is None for the environment of the run.
    """

    run_dir: Path
    model: Path
    env: str | None
    n_episodes: int
    n_envs: int
    seed: int
    deterministic: bool

    def __post_init__(self) -> None:
        check_number("--n-episodes", self.n_episodes, at_least=1)
        check_number("--n-envs", self.n_envs, at_least=1)
        check_number("--seed", self.seed, at_least=0, at_most=2**31 - 1)


@dataclass(frozen=True)
class RunEvaluation:
    """Returns of an agent in the order in which the episodes ended."""

    plan: RunEvaluationPlan
    env: str
    episodes: list[Episode]
    sha256: str
    seconds: float

    def record(self, command: str) -> dict[str, Any]:
        """Return returns, settings and versions, as a file of `evaluation_record` says them."""
        names = ("n_episodes", "n_envs", "seed", "deterministic")
        return evaluation_record(
            self.env,
            [{"return": e.score, "length": e.length, "is_cut": e.is_cut} for e in self.episodes],
            model={"path": str(self.plan.model), "sha256": self.sha256},
            settings={name: getattr(self.plan, name) for name in names},
            command=command,
            end_time=now(),
            wall_seconds=round(self.seconds, 3),
            **software(),
        )


def evaluate_run(
    plan: RunEvaluationPlan, *, show: Callable[[Episode], object] = lambda _episode: None
) -> RunEvaluation:
    """Play whole episodes with the agent of a run; `show` is called with every one that ends.

    Observations are normalised by the statistics in the model's file, and rewards are raw.
    """
    digest = sha256_of_file(plan.model)  # a training may replace the file
    _, trained = planned({}, plan.run_dir, lambda _line: None)
    trained = replace(trained, env=plan.env or trained.env)
    model = _rebuilt(plan, trained)
    episodes: list[Episode] = []
    start = time.perf_counter()
    play: Any = evaluate_policy
    if trained.algo == "ppo_mask":
        from sb3_contrib.common.maskable import evaluation

        play = evaluation.evaluate_policy
    play(
        model,
        model.get_env(),
        plan.n_episodes,
        deterministic=plan.deterministic,
        callback=noting(episodes, show),
    )
    seconds = time.perf_counter() - start
    model.get_env().close()  # type: ignore[union-attr]
    return RunEvaluation(plan, str(trained.env), episodes, digest, seconds)


def _rebuilt(plan: RunEvaluationPlan, trained: TrainingPlan) -> BaseAlgorithm:
    """Return an agent as the run built it, with the weights of a file, in environments to play."""
    _, weights = read_model_zip(plan.model)
    words = [word for word in trained.hyperparams or () if not word.startswith("buffer_size:")]
    n_envs = min(plan.n_envs, plan.n_episodes)
    # on what this machine has
    playing = replace(trained, hyperparams=words, n_envs=n_envs, seed=plan.seed, device="auto")
    model = make_model(playing, pretrained_file(trained, plan.run_dir), n_timesteps=n_envs)
    try:
        model.policy.load_state_dict(weights)
    except RuntimeError as error:  # torch names every tensor, each on its own line
        reason = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise ValueError(
            f"Expected {plan.model} to hold the weights of the agent that {plan.run_dir} builds, "
            f"got: {reason}"
        ) from error
    if hasattr(model, "exploration_rate"):
        model.exploration_rate = saved_exploration_rate(plan.model)
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        load_statistics(plan.model, normalizer)
    return model
