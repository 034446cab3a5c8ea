"""Play whole games or episodes with a saved agent, and score it for a record and a video.

A run's record says how its agent is built, so that its weights are read without pickle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from rl_infonce.agents.episodes import Episode, RecurrentPlayer, noting, play_episodes
from rl_infonce.agents.epsilon_greedy import EpsilonGreedyPolicy, epsilon_greedy_policy
from rl_infonce.agents.model_zip import read_model_zip
from rl_infonce.agents.saved_agent import open_policy, saved_exploration_rate
from rl_infonce.agents.saved_extractor import NotRebuildableError
from rl_infonce.agents.saved_policy import read_policy
from rl_infonce.agents.saved_statistics import load_statistics
from rl_infonce.atari import make_atari_vec_env
from rl_infonce.atari.screens import replay_screens
from rl_infonce.checks import check_number
from rl_infonce.environments.make_vec_env import make_vec_env, normalized
from rl_infonce.files.digests import sha256_of_file
from rl_infonce.report.video import write_video
from rl_infonce.runs.evaluation_file import evaluation_record
from rl_infonce.runs.run_directory import now
from rl_infonce.runs.software import software
from rl_infonce.training.plan import TrainingPlan, planned
from rl_infonce.training.run_model import close_env, make_model
from rl_infonce.training.training_run import pretrained_file

STEPS_PER_SECOND = 60 / 4  # by the emulator's clock
Show = Callable[[Episode], object]


@dataclass(frozen=True)
class EvaluationPlan:
    """A saved agent and how it is played; the errors name the flags of `rl-infonce evaluate`.

    `run_dir` is the run that the model is of, if there is one, and `task` an Atari game or the id
    of another environment. In a game, `epsilon` is the probability of a uniform action; None takes
    0 if `deterministic`, else the one with which a DQN was saved. `max_frames` counts the
    emulator's frames after which a game is cut.
    """

    model: Path
    run_dir: Path | None
    task: str
    is_game: bool
    n_episodes: int
    n_envs: int
    seed: int
    deterministic: bool
    epsilon: float | None
    max_frames: int

    def __post_init__(self) -> None:
        check_number("--n-episodes", self.n_episodes, at_least=1)
        check_number("--n-envs", self.n_envs, at_least=1)
        check_number("--seed", self.seed, at_least=0, at_most=2**31 - 1)
        check_number("--max-frames", self.max_frames, at_least=1)
        if self.epsilon is not None:
            check_number("--epsilon", self.epsilon, at_least=0, at_most=1)


@dataclass(frozen=True)
class Evaluation:
    """Scores of an agent in the order in which the episodes ended.

    `game_state` is the state of a game's environments, from which games are replayed.
    """

    plan: EvaluationPlan
    episodes: list[Episode]
    sha256: str
    settings: dict[str, Any]
    seconds: float
    game_state: dict[str, Any] | None = None

    def record(self, command: str) -> dict[str, Any]:
        """Return scores, settings and versions, as a file of `evaluation_record` says them."""
        return evaluation_record(
            self.plan.task,
            [{"return": e.score, "length": e.length, "is_cut": e.is_cut} for e in self.episodes],
            model={"path": str(self.plan.model), "sha256": self.sha256},
            settings=self.settings,
            command=command,
            end_time=now(),
            wall_seconds=round(self.seconds, 3),
            **software(),
        )

    def write_video(self, path: Path, *, most_seconds: float) -> tuple[float, bool]:
        """Write a video of one game; return its seconds, and whether the game went on."""
        if self.game_state is None:
            raise ValueError(f"Expected a game for a video, got {self.plan.task}. Leave it out.")
        most = round(most_seconds * STEPS_PER_SECOND)
        screens = replay_screens(self.game_state)
        n = write_video(path, screens, frames_per_second=STEPS_PER_SECOND, most=most)
        return n / STEPS_PER_SECOND, n == most


def evaluate_game(
    plan: EvaluationPlan, *, trust_pickle: bool = False, show: Show = lambda _episode: None
) -> Evaluation:
    """Play whole Atari games with a saved agent; `show` is called with every game that ends."""
    digest = sha256_of_file(plan.model)  # a training may replace the file
    epsilon = plan.epsilon
    if epsilon is None:
        epsilon = 0.0 if plan.deterministic else saved_exploration_rate(plan.model)
    player = _player(plan, epsilon, trust_pickle=trust_pickle)
    env = make_atari_vec_env(
        plan.task,
        min(plan.n_envs, plan.n_episodes),
        seed=plan.seed,
        terminal_on_life_loss=False,
        clip_reward=False,
        max_frames_per_episode=plan.max_frames,
    )
    start = time.perf_counter()
    episodes = play_episodes(player, env, plan.n_episodes, show=show)
    seconds = time.perf_counter() - start
    state = env.get_state()
    env.close()
    how = _settings(plan, "n_episodes", "seed", "deterministic")
    settings = state["settings"] | how | {"epsilon": epsilon}
    return Evaluation(plan, episodes, digest, settings, seconds, state)


def evaluate_run(plan: EvaluationPlan, *, show: Show = lambda _episode: None) -> Evaluation:
    """Play whole episodes of an environment that is no Atari game with the agent of a run.

    Observations are normalised by the statistics in the model's file, and rewards are raw. `show`
    is called with every episode that ends.
    """
    digest = sha256_of_file(plan.model)
    trained, model = _rebuilt(plan)
    env = _environment(plan, trained, model)
    episodes: list[Episode] = []
    start = time.perf_counter()
    play: Any = evaluate_policy
    if trained.algo == "ppo_mask":
        from sb3_contrib.common.maskable import evaluation

        play = evaluation.evaluate_policy
    callback = noting(episodes, show)
    play(model, env, plan.n_episodes, deterministic=plan.deterministic, callback=callback)
    seconds = time.perf_counter() - start
    close_env(env)
    settings = _settings(plan, "n_episodes", "n_envs", "seed", "deterministic")
    return Evaluation(plan, episodes, digest, settings, seconds)


def _settings(plan: EvaluationPlan, *names: str) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in names}


def _player(
    plan: EvaluationPlan, epsilon: float, *, trust_pickle: bool
) -> EpsilonGreedyPolicy | RecurrentPlayer:
    """Return what plays games; a file of a run that does not say all is built as the run says."""
    rng, deterministic = np.random.default_rng(plan.seed), plan.deterministic
    if plan.run_dir is None:
        opened = open_policy(plan.model, trust_pickle=trust_pickle)
        return epsilon_greedy_policy(opened, epsilon, rng, deterministic=deterministic)
    try:
        network = read_policy(plan.model)
    except NotRebuildableError:
        _, model = _rebuilt(plan)
        if hasattr(model.policy, "lstm_actor"):
            return RecurrentPlayer(model, epsilon, rng, deterministic=deterministic)
        return epsilon_greedy_policy(model.policy, epsilon, rng, deterministic=deterministic)
    return epsilon_greedy_policy(network, epsilon, rng, deterministic=deterministic)


def _rebuilt(plan: EvaluationPlan) -> tuple[TrainingPlan, BaseAlgorithm]:
    """Return the plan of a run, and its agent as the run built it, with the weights of a file."""
    assert plan.run_dir is not None  # noqa: S101 (for mypy)
    _, weights = read_model_zip(plan.model)
    _, trained = planned({}, plan.run_dir, lambda _line: None)
    words = [word for word in trained.hyperparams or () if not word.startswith("buffer_size:")]
    # on what this machine has
    built = replace(trained, hyperparams=words, seed=plan.seed, device="auto")
    model = make_model(built, pretrained_file(trained, plan.run_dir), n_timesteps=1)
    close_env(model.get_env())
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
    return trained, model


def _environment(plan: EvaluationPlan, trained: TrainingPlan, model: BaseAlgorithm) -> VecEnv:
    """Return environments for a model to play in, with its statistics."""
    env = make_vec_env(plan.task, min(plan.n_envs, plan.n_episodes), seed=plan.seed)
    normalizer = normalized(env, gamma=1.0) if trained.normalize else None
    model.n_envs = env.num_envs
    try:
        model.set_env(normalizer or env)
    except ValueError as error:
        env.close()
        raise ValueError(
            f"Expected `--env` with the observations and actions of {trained.task}, on which the "
            f"agent of {plan.run_dir} was trained, got {plan.task}: "
            f"{' '.join(str(error).split())}. Leave it out."
        ) from error
    if normalizer is not None:
        load_statistics(plan.model, normalizer)
    playing = model.get_env()
    assert playing is not None  # noqa: S101 (for mypy)
    return playing
