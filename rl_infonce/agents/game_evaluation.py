"""Play whole games with an agent, and score it for a record and a video."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from rl_infonce.agents.epsilon_greedy import EpsilonGreedyPolicy, epsilon_greedy_policy
from rl_infonce.agents.saved_agent import open_policy, saved_exploration_rate
from rl_infonce.atari import make_atari_vec_env
from rl_infonce.atari.screens import replay_screens
from rl_infonce.checks import check_count, check_number
from rl_infonce.files.digests import sha256_of_file
from rl_infonce.report.video import write_video
from rl_infonce.runs.evaluation_file import evaluation_record
from rl_infonce.runs.run_directory import now, software

STEPS_PER_SECOND = 60 / 4  # by the emulator's clock


class Episode(NamedTuple):
    """One whole game: its score in the game's own points, and its length in agent steps.

    `env` is the index of its environment; `is_cut` says whether it was stopped for its length.
    """

    env: int
    score: float
    length: int
    is_cut: bool


def play_episodes(
    policy: EpsilonGreedyPolicy,
    env: VecEnv,
    n_episodes: int = 10,
    *,
    show: Callable[[Episode], object] = lambda _episode: None,
) -> list[Episode]:
    """Play whole games with SB3's `evaluate_policy` and return them in the order they ended.

    Every environment plays its share of the games, however long they are: taking the first that
    end would favour short games. Returns and lengths are those of SB3's `Monitor`, which sees
    neither the clipping of rewards nor lost lives. `env` comes without the model's own
    `VecNormalize`, which the policy applies; `show` is called with every game that ends.
    """
    check_count("n_episodes", n_episodes)
    n_actions = int(getattr(env.action_space, "n", 0))
    if policy.n_actions != n_actions:
        raise ValueError(
            f"Expected a model with {n_actions} actions, as many as the game has, got a model with "
            f"{policy.n_actions}. Was it trained on another game?"
        )
    episodes: list[Episode] = []
    evaluate_policy(policy, env, n_episodes, callback=noting(episodes, show))
    return episodes


def noting(
    episodes: list[Episode], show: Callable[[Episode], object]
) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Return a callback of SB3's `evaluate_policy` that adds every episode that ends to a list."""

    def note(names: dict[str, Any], _globals: dict[str, Any]) -> None:
        info = names["info"]
        if names["done"] and "episode" in info:
            ended = info["episode"]
            is_cut = bool(info.get("TimeLimit.truncated", False))
            episodes.append(Episode(names["i"], float(ended["r"]), int(ended["l"]), is_cut))
            show(episodes[-1])

    return note


@dataclass(frozen=True)
class EvaluationPlan:
    """Agent, game and manner of an evaluation; the errors name the flags of `rl-infonce evaluate`.

    `epsilon` is the probability of a uniform action; None takes 0 if `deterministic`, else the
    one with which a DQN was saved. `max_frames` counts the emulator's frames after which a game
    is cut.
    """

    model: Path
    game: str
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
    """Scores of an agent in the order in which the games ended.

    `env_state` is the environments' state, from which games are replayed.
    """

    plan: EvaluationPlan
    episodes: list[Episode]
    model: dict[str, str]
    settings: dict[str, Any]
    seconds: float
    env_state: dict[str, Any]

    def record(self, command: str) -> dict[str, Any]:
        """Return scores, settings and versions, as a file of `evaluation_record` says them."""
        return evaluation_record(
            self.plan.game,
            [{"return": e.score, "length": e.length, "is_cut": e.is_cut} for e in self.episodes],
            model=self.model,
            settings=self.settings,
            command=command,
            end_time=now(),
            wall_seconds=round(self.seconds, 3),
            **software(),
        )

    def write_video(self, path: Path, *, most_seconds: float) -> tuple[float, bool]:
        """Write a video of one game; return its seconds, and whether the game went on."""
        most = round(most_seconds * STEPS_PER_SECOND)
        screens = replay_screens(self.env_state)
        n = write_video(path, screens, frames_per_second=STEPS_PER_SECOND, most=most)
        return n / STEPS_PER_SECOND, n == most


def evaluate_agent(
    plan: EvaluationPlan,
    *,
    trust_pickle: bool = False,
    show: Callable[[Episode], object] = lambda _episode: None,
) -> Evaluation:
    """Play whole games with a saved agent; `show` is called with every game that ends."""
    digest = sha256_of_file(plan.model)  # a training may replace the file
    network = open_policy(plan.model, trust_pickle=trust_pickle)
    epsilon = plan.epsilon
    if epsilon is None:
        epsilon = 0.0 if plan.deterministic else saved_exploration_rate(plan.model)
    rng = np.random.default_rng(plan.seed)
    policy = epsilon_greedy_policy(network, epsilon, rng, deterministic=plan.deterministic)
    env = make_atari_vec_env(
        plan.game,
        min(plan.n_envs, plan.n_episodes),
        seed=plan.seed,
        terminal_on_life_loss=False,
        clip_reward=False,
        max_frames_per_episode=plan.max_frames,
    )
    start = time.perf_counter()
    episodes = play_episodes(policy, env, plan.n_episodes, show=show)
    seconds = time.perf_counter() - start
    state = env.get_state()
    env.close()
    how = {
        "n_episodes": plan.n_episodes,
        "seed": plan.seed,
        "deterministic": plan.deterministic,
        "epsilon": epsilon,
    }
    saved = {"path": str(plan.model), "sha256": digest}
    return Evaluation(plan, episodes, saved, state["settings"] | how, seconds, state)
