"""Whole games of an agent and what they returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from rl_infonce.agents.epsilon_greedy import EpsilonGreedyPolicy
from rl_infonce.checks import check_count


class Episode(NamedTuple):
    """One whole game.

    Attributes:
        env: Number of the environment it was played in.
        score: Sum of its rewards: the return, undiscounted, in the game's own points.
        length: In agent steps.
        is_cut: Whether it was stopped for its length.
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

    Every environment plays its share of them, however long they are: the first to end anywhere
    would favour short games. Returns and lengths are those of SB3's `Monitor`, which sees neither
    the clipping of rewards nor lost lives.

    Args:
        policy: Of `epsilon_greedy_policy`.
        env: Of `make_atari_vec_env`, or any whose games are within a `Monitor`; without the
            `VecNormalize` of a policy's own model, which the policy applies.
        n_episodes: At least 1.
        show: Called with every game that ends.

    Raises:
        TypeError: If `n_episodes` is no integer.
        ValueError: If an argument is out of range, or the model knows other actions or images than
            the game has, or `env` normalises images that the policy normalises itself.
    """
    check_count("n_episodes", n_episodes)
    n_actions = int(getattr(env.action_space, "n", 0))
    if policy.n_actions != n_actions:
        raise ValueError(
            f"Expected a model of {n_actions} actions, as the game has, got one of "
            f"{policy.n_actions}. Was it trained on another game?"
        )
    episodes: list[Episode] = []

    def note(names: dict[str, Any], _globals: dict[str, Any]) -> None:
        info = names["info"]
        if names["done"] and "episode" in info:
            ended = info["episode"]
            is_cut = bool(info.get("TimeLimit.truncated", False))
            episodes.append(Episode(names["i"], float(ended["r"]), int(ended["l"]), is_cut))
            show(episodes[-1])

    evaluate_policy(_Predictor(policy), env, n_episodes, callback=note)
    return episodes


class _Predictor:
    """A function of observations in the form that `evaluate_policy` asks for."""

    def __init__(self, policy: EpsilonGreedyPolicy) -> None:
        self._policy = policy

    def predict(
        self,
        observation: Any,
        state: tuple[npt.NDArray[Any], ...] | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = False,
    ) -> tuple[npt.NDArray[np.int64], None]:
        """Return actions [N]; the function has decided already how it chooses them."""
        return self._policy(observation), None
