"""Tasks of dm_control: how they are usually seen, and episodes that can be played again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

# Yarats et al. 2021 (SAC+AE), who repeat 4 times on three more domains, as we do on all others.
_REPEATS = {"cartpole": 8, "finger": 2, "walker": 2}
_OTHER_REPEATS = 4
# Yarats et al. 2022 (DrQ-v2): the first camera, but the third of quadrupeds.
_CAMERAS = {"quadruped": 2}


def n_repeats(env_id: str) -> int:
    """Return how often each action is repeated in studies that learn from pixels.

    Example:
        >>> n_repeats("dm_control/cartpole-swingup-v0"), n_repeats("dm_control/cheetah-run-v0")
        (8, 4)
    """
    return _REPEATS.get(_domain(env_id), _OTHER_REPEATS)


def drawn_at(env_id: str, size: tuple[int, int]) -> dict[str, Any]:
    """Return arguments with which a task is made that draws pictures of a height and a width."""
    height, width = size
    drawing = {"height": height, "width": width, "camera_id": _CAMERAS.get(_domain(env_id), 0)}
    # LQR draws its springs when it is made, and would be another task in every process.
    return {"render_mode": "rgb_array", "render_kwargs": drawing, "task_kwargs": {"random": 0}}


def pictures(env_id: str, task: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an environment that shows pictures [H, W, 3] of a task; ImportError without OpenGL."""
    from mujoco import FatalError

    try:
        return wrappers.AddRenderObservation(ReplayableTask(task, n_repeats(env_id)))
    except FatalError as error:
        raise ImportError(str(error)) from error


def check_mujoco(found: str) -> None:
    """Raise an ImportError if dm_control 1.0.50 does not run with this version of MuJoCo."""
    if int(found.split(".")[0]) >= 4:
        raise ImportError(f"MuJoCo {found}, and dm_control runs with MuJoCo 3 only")


def _domain(env_id: str) -> str:
    return env_id.rpartition("/")[2].split("-")[0]


class ReplayableTask(gym.Env[Any, Any]):
    """A task whose actions are repeated, and whose state is the episode that led to it.

    Tasks change their models as well as their physics, so that an episode is played again from
    its random numbers. This is no gym.Wrapper, because its state is that of all within.
    """

    def __init__(self, task: gym.Env[Any, Any], n_repeats: int) -> None:
        self.task, self.n_repeats = task, n_repeats
        self.observation_space, self.action_space = task.observation_space, task.action_space
        self.metadata, self.render_mode, self.spec = task.metadata, task.render_mode, task.spec
        self._start: dict[str, Any] = {}
        self._actions: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        random: Any = self.task.unwrapped.np_random  # a RandomState, which a seed replaces
        self._start = {"random": random.get_state(legacy=False), "seed": seed}
        self._actions = []
        return self.task.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat an action until the episode ends, and return the sum of the rewards."""
        self._actions.append(np.array(action))
        total = 0.0
        for _ in range(self.n_repeats):
            seen, reward, terminated, truncated, info = self.task.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return seen, total, terminated, truncated, info

    def render(self) -> Any:
        """Return a picture [H, W, 3] of the scene."""
        return self.task.render()

    def close(self) -> None:
        """Free the physics."""
        self.task.close()

    def get_state(self) -> dict[str, Any]:
        """Return the random numbers before this episode, its seed, and its actions so far."""
        return self._start | {"actions": list(self._actions)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Play an episode again."""
        random: Any = self.task.unwrapped.np_random
        random.set_state(state["random"])
        self.reset(seed=state["seed"])
        for action in state["actions"]:
            self.step(action)
