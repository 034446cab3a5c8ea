"""Gymnasium environments whose observations hold further dimensions that no action changes.

Importing this module registers, for each task below and each kind and number, an id such as
`HalfCheetahWhite128-v5`, so that "experiments.distractors:HalfCheetahWhite128-v5" makes one.
White noise is drawn anew in each step and cannot be predicted. Drifting noise is an autoregressive
process whose correlation falls to 1/e in 50 steps: it can be predicted, and tells trajectories
apart, which a temporal loss could mistake for state.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.envs.registration import registry

TASKS = (
    "HalfCheetah-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "Ant-v5",
    "Swimmer-v5",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "Pendulum-v1",
    "BipedalWalker-v3",
)
KEPT = {"White": 0.0, "Drifting": float(np.exp(-1 / 50))}
"""Share of a distractor's value that stays in each step, by kind."""
NUMBERS = (64, 128, 256)


class Distractors(gym.ObservationWrapper[npt.NDArray[np.float32], Any, Any]):
    """Vectors with n more dimensions behind them, each of mean 0 and deviation 1."""

    def __init__(self, env: gym.Env[Any, Any], kept: float, n: int) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)  # noqa: S101 (MuJoCo's)
        self.kept, self.n = kept, n
        self.rng = np.random.default_rng()
        self.distractors = np.zeros(n)
        self.observation_space = spaces.Box(-np.inf, np.inf, (space.shape[0] + n,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin an episode; a seed is that of the distractors also, which go on without one."""
        if seed is not None:
            self.rng = np.random.default_rng([seed, self.n])
        if seed is not None or not self.distractors.any():
            self.distractors = self.rng.standard_normal(self.n)
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return [n_observed + n]."""
        fresh = self.rng.standard_normal(self.n)
        self.distractors = self.kept * self.distractors + (1 - self.kept**2) ** 0.5 * fresh
        return np.concatenate([observation, self.distractors]).astype(np.float32)

    def get_state(self) -> dict[str, Any]:
        """Return what the next observation depends on beside the environment."""
        return {"rng": self.rng.bit_generator.state, "distractors": self.distractors.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where `get_state` was called."""
        self.rng.bit_generator.state = state["rng"]
        self.distractors = np.array(state["distractors"])


def make(task: str, kind: str, n: int, **kwargs: Any) -> Distractors:
    """Return a task with distractors."""
    return Distractors(gym.make(task, **kwargs), KEPT[kind], n)


def register() -> None:
    """Make the ids known to Gymnasium."""
    for task in TASKS:
        for kind in KEPT:
            for n in NUMBERS:
                name, version = task.split("-")
                name = f"{name}{kind}{n}-{version}"
                if name not in registry:
                    gym.register(name, partial(make, task, kind, n), disable_env_checker=True)


register()
