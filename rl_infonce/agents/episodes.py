"""Play whole games with a policy, and note every one that ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from rl_infonce.agents.epsilon_greedy import EpsilonGreedyPolicy
from rl_infonce.checks import check_count


class Episode(NamedTuple):
    """One whole game: its score in the game's own points, and its length in agent steps.

    `env` is the index of its environment; `is_cut` says whether it was stopped for its length.
    """

    env: int
    score: float
    length: int
    is_cut: bool


class RecurrentPlayer:
    """A recurrent model's actions, replaced by uniform ones with probability epsilon.

    Its memory goes from call to call, and begins anew where an episode starts.
    """

    def __init__(
        self,
        model: BaseAlgorithm,
        epsilon: float,
        rng: np.random.Generator,
        *,
        deterministic: bool,
    ) -> None:
        self.n_actions = int(getattr(model.action_space, "n", 0))
        self._model, self._deterministic = model, deterministic
        self._epsilon, self._rng = epsilon, rng

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,  # the player was told
    ) -> tuple[npt.NDArray[np.int64], Any]:
        """Return actions and the memory after them, as SB3's `evaluate_policy` expects."""
        actions, state = self._model.predict(
            observation, state, episode_start, deterministic=self._deterministic
        )
        is_random = self._rng.random(len(actions)) < self._epsilon
        uniform = self._rng.integers(self.n_actions, size=len(actions))
        return np.where(is_random, uniform, actions), state


def play_episodes(
    policy: EpsilonGreedyPolicy | RecurrentPlayer,
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
