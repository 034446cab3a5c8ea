"""Steps of several environments by age, of which anchors are drawn and observations gathered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rl_infonce import temporal
from rl_infonce.sb3.episode_index import Array
from rl_infonce.temporal import IntArray


def as_stored(actions: Array) -> Array:
    """Return actions unchanged."""
    return actions


@dataclass(frozen=True)
class Experience:
    """Observations and actions of T steps by age (0 = oldest) and N environments.

    Nothing is copied until it is asked for. A view of a replay buffer holds until rows are added
    or the reader reads again; one of a rollout buffer outlives the buffer's `get()` and `reset()`,
    which replace the arrays that the view refers to.

    Attributes:
        n_steps: Number T of steps.
        n_envs: Number N of environments.
    """

    n_steps: int
    n_envs: int
    _ids: IntArray
    _oldest_row: int
    _actions: Array
    _action_shape: tuple[int, ...]
    _gather: Callable[[IntArray, IntArray], Array]
    _executed: Callable[[Array], Array] = as_stored

    def part(self, start: int, stop: int) -> Experience:
        """Return the steps from `start` on and before `stop`, by age, as an experience."""
        first = (self._oldest_row + start) % max(len(self._ids), 1)
        return replace(self, n_steps=stop - start, _oldest_row=first)

    def sample_anchors(
        self, horizon: int, n_pairs: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Draw distinct legal anchors; see `temporal.sample_pairs`.

        Args:
            horizon: Steps between anchor and positive, >= 0; the largest one if there are several.
            n_pairs: Number of anchors wanted.
            rng: Source of all randomness.
        """
        of_steps = {"oldest_row": self._oldest_row, "n_steps": self.n_steps}
        return temporal.sample_pairs(self._ids, horizon, n_pairs, rng, **of_steps)

    def episodes(self, steps: IntArray, envs: IntArray) -> IntArray:
        """Return the episode id of each (step, env), unique per environment.

        Args:
            steps: [...] steps by age, in [0, T).
            envs: [...] environments, the same shape.

        Returns:
            [...] episode ids.

        Raises:
            IndexError: If a step is out of range.
        """
        return self._ids[self._rows(steps), envs]

    def futures_among(
        self, steps: IntArray, envs: IntArray, horizon: int
    ) -> tuple[temporal.BoolArray, IntArray, temporal.BoolArray]:
        """Tell which steps have a future, and which are one; see `temporal.futures_among`."""
        of_steps = {"oldest_row": self._oldest_row, "n_steps": self.n_steps}
        return temporal.futures_among(self._ids, steps, envs, horizon, **of_steps)

    def ages(self, rows: IntArray) -> IntArray:
        """Return the steps by age at which rows of the buffer were written."""
        return (rows - self._oldest_row) % max(len(self._ids), 1)

    def observations(self, steps: IntArray, envs: IntArray) -> Array:
        """Return copies of the observations as the policy receives them before its preprocessing.

        Args:
            steps: [...] steps by age, in [0, T).
            envs: [...] environments, the same shape.

        Returns:
            [..., *observation shape], in the dtype of the buffer, or float32 if a `VecNormalize`
            normalises observations.

        Raises:
            IndexError: If a step is out of range.
        """
        return self._gather(self._rows(steps), np.asarray(envs))

    def actions(self, steps: IntArray, envs: IntArray) -> Array:
        """Return copies of the actions that the environment got; boxes are scaled to [-1, 1].

        Args:
            steps: [...] steps by age, in [0, T).
            envs: [...] environments, the same shape.

        Returns:
            [..., *action shape] actions; a discrete action has no further axis.

        Raises:
            IndexError: If a step is out of range.
        """
        actions: Array = self._actions[self._rows(steps), envs]
        return self._executed(actions.reshape(*np.shape(steps), *self._action_shape))

    def _rows(self, steps: IntArray) -> IntArray:
        """Translate ages into rows of the arrays."""
        steps = np.asarray(steps)
        if steps.size and not (steps.min() >= 0 and steps.max() < self.n_steps):
            raise IndexError(
                f"Expected `steps` in [0, {self.n_steps}), got {steps.min()} to {steps.max()}."
            )
        return (steps + self._oldest_row) % max(len(self._ids), 1)
