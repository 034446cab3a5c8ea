"""What a Stable-Baselines3 buffer holds, read-only and by age, as an `Experience`.

Rollout buffers are views of one array before and after their `get()` flattened it. Replay buffers
are rings; the reader keeps the episode id of every row and extends them by the rows added since
its last read, so a read costs O(new rows) and a batch of anchors O(anchors).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from rl_infonce import temporal
from rl_infonce.sb3.episode_index import Array, Clock, EpisodeIndex, Ring
from rl_infonce.sb3.experience import Experience, as_stored
from rl_infonce.temporal import IntArray


class UnreadableBufferError(Exception):
    """A buffer whose observations cannot be paired in time."""


class ExperienceReader:
    """Turns the buffer of an algorithm into an `Experience`.

    Keep one per algorithm: it remembers where replay episodes end, also where the buffer itself
    has forgotten. It holds no reference to the algorithm.
    """

    def __init__(self, observation_key: str | None = None) -> None:
        """Create a reader.

        Args:
            observation_key: Key of the observation to read when observations are dictionaries.
        """
        self.observation_key = observation_key
        self._index = EpisodeIndex()
        self._resumed: tuple[float, int] | None = None

    def n_steps_before(self, algorithm: BaseAlgorithm) -> int:
        """Return the time steps before the current `learn()`, or before the one it resumes."""
        if self._resumed is not None and self._resumed[0] == algorithm.start_time:
            return self._resumed[1]
        return int(algorithm._num_timesteps_at_start)

    def resume(self, algorithm: BaseAlgorithm, n_steps_before: int) -> None:
        """Take the current `learn()` for the rest of one whose environments it goes on with."""
        self._resumed = algorithm.start_time, n_steps_before

    def read(self, algorithm: BaseAlgorithm) -> Experience:
        """Return a view of what the algorithm's buffer holds now.

        Args:
            algorithm: An on- or off-policy algorithm; it is only read.

        Returns:
            The rows written so far, by age.

        Raises:
            UnreadableBufferError: If there is no buffer, or it does not hold plain arrays of
                observations, actions and episode borders.
        """
        rollout_buffer = getattr(algorithm, "rollout_buffer", None)
        if rollout_buffer is not None:
            executed = _executed_by(rollout_buffer, getattr(algorithm, "policy", None))
            return _read_rollout(
                rollout_buffer, self._clock(algorithm), self.observation_key, executed
            )
        replay_buffer = getattr(algorithm, "replay_buffer", None)
        if replay_buffer is not None:
            return self._read_replay(replay_buffer, algorithm)
        raise UnreadableBufferError(
            f"{type(algorithm).__name__} has no rollout or replay buffer to draw pairs from; "
            "use an algorithm that has one, such as PPO or DQN."
        )

    def _clock(self, algorithm: BaseAlgorithm) -> Clock:
        n_before = self.n_steps_before(algorithm)
        n_rows = (algorithm.num_timesteps - n_before) // max(algorithm.n_envs, 1)
        return Clock(algorithm.start_time, n_rows, continued=n_before > 0)

    def _read_replay(self, buffer: Any, algorithm: BaseAlgorithm) -> Experience:
        ring = _check_ring(buffer, self.observation_key)
        ids = self._index.update(ring, self._clock(algorithm))
        n_steps, oldest_row = ring.n_filled, ring.pos if ring.full else 0
        if ring.full and getattr(buffer, "optimize_memory_usage", False):
            # The oldest slot already holds the observation after the newest row.
            n_steps, oldest_row = n_steps - 1, oldest_row + 1
        normalizer = algorithm.get_vec_normalize_env()
        return Experience(
            n_steps=n_steps,
            n_envs=ring.dones.shape[1],
            _ids=ids,
            _oldest_row=oldest_row,
            _actions=ring.actions,
            _action_shape=tuple(buffer.action_space.shape or ()),
            _gather=_gatherer(buffer, self.observation_key, normalizer),
        )


def _executed_by(buffer: Any, policy: Any) -> Callable[[Array], Array]:
    """Return what clips actions of a rollout as SB3 does, and scales them as replay buffers do."""
    space = getattr(buffer, "action_space", None)
    if not isinstance(space, spaces.Box) or getattr(policy, "squash_output", False):
        return as_stored
    low, width = space.low, np.maximum(space.high - space.low, np.finfo(np.float32).tiny)

    def executed(actions: Array) -> Array:
        scaled: Array = 2.0 * (np.clip(actions, space.low, space.high) - low) / width - 1.0
        return scaled

    return executed


def _read_rollout(
    buffer: Any, clock: Clock, observation_key: str | None, executed: Callable[[Array], Array]
) -> Experience:
    _demand(buffer, "episode_starts")
    n_steps = buffer.buffer_size if buffer.full else buffer.pos
    starts = _unflattened(buffer, "episode_starts", buffer.episode_starts, ())[:n_steps]
    last_step = np.zeros(starts.shape, dtype=np.bool_)
    last_step[:-1] = starts[1:] != 0
    # A callback that stops a learn() swallows a step; the next one does not know.
    if clock.continued and clock.n_rows <= n_steps + 1:
        last_step[:1] = True
    shape = _observation_shape(buffer, observation_key)
    observations = _unflattened(
        buffer, "observations", observations_of(buffer, observation_key), shape
    )
    actions = _unflattened(buffer, "actions", buffer.actions, (buffer.action_dim,))
    return Experience(
        n_steps=n_steps,
        n_envs=buffer.n_envs,
        _ids=temporal.episode_ids(last_step),
        _oldest_row=0,
        _actions=actions,
        _action_shape=tuple(buffer.action_space.shape or ()),
        _gather=lambda rows, envs: observations[rows, envs],
        _executed=executed,
    )


def _demand(buffer: Any, borders: str) -> None:
    """Raise unless the buffer has the attributes that every SB3 buffer of its family has."""
    names = ["observations", "actions", borders, "pos", "full", "buffer_size", "n_envs"]
    names += ["obs_shape", "action_dim", "action_space"]
    missing = [name for name in names if not hasattr(buffer, name)]
    if missing:
        raise UnreadableBufferError(
            f"Cannot read {type(buffer).__name__}: expected attributes {names}, missing "
            f"{missing}; use a buffer class that stores plain arrays as Stable-Baselines3 does."
        )


def _unflattened(buffer: Any, name: str, array: Any, shape: tuple[int, ...]) -> Array:
    """View a rollout array as [T, N, *shape], whether or not `get()` has flattened it."""
    n_steps, n_envs = buffer.buffer_size, buffer.n_envs
    if isinstance(array, np.ndarray):
        if array.shape == (n_steps, n_envs, *shape):
            return array
        # get() flattens environment by environment and gives scalars a last axis of 1.
        if array.shape == (n_steps * n_envs, *(shape or (1,))):
            unflattened: Array = array.reshape(n_envs, n_steps, *shape).swapaxes(0, 1)
            return unflattened
    raise _unreadable(buffer, name, array, (n_steps, n_envs, *shape))


def _check_ring(buffer: Any, observation_key: str | None) -> Ring:
    """Collect the arrays of a replay buffer, or raise if one is not what SB3 stores."""
    _demand(buffer, "dones")
    shape = _observation_shape(buffer, observation_key)
    cells = (buffer.buffer_size, buffer.n_envs)
    observations = observations_of(buffer, observation_key)
    arrays = [
        ("observations", observations, shape),
        ("actions", buffer.actions, (buffer.action_dim,)),
        ("dones", buffer.dones, ()),
    ]
    for name, array, tail in arrays:
        if not isinstance(array, np.ndarray) or array.shape != (*cells, *tail):
            raise _unreadable(buffer, name, array, (*cells, *tail))
    announced = getattr(buffer, "next_observations", None)
    if isinstance(announced, dict):
        announced = announced.get(observation_key)
    if not isinstance(announced, np.ndarray) or announced.shape != observations.shape:
        announced = None
    return Ring(observations, announced, buffer.actions, buffer.dones, buffer.pos, buffer.full)


def observations_of(buffer: Any, observation_key: str | None) -> Any:
    """Return the observations of a buffer or a minibatch, or those under a dictionary's key."""
    observations = buffer.observations
    return observations.get(observation_key) if isinstance(observations, dict) else observations


def _observation_shape(buffer: Any, observation_key: str | None) -> tuple[int, ...]:
    shapes = buffer.obs_shape
    if not isinstance(shapes, dict):
        return tuple(shapes)
    if observation_key is None or observation_key not in shapes:
        raise UnreadableBufferError(
            f"{type(buffer).__name__} holds dictionaries of observations {sorted(shapes)}, got "
            f"`observation_key` {observation_key!r}; pass one of them to InfoNCEExtractor, or take "
            "InfoNCECombinedExtractor."
        )
    return tuple(shapes[observation_key])


def _unreadable(
    buffer: Any, name: str, array: Any, expected: tuple[int, ...]
) -> UnreadableBufferError:
    got = array.shape if isinstance(array, np.ndarray) else type(array).__name__
    return UnreadableBufferError(
        f"Cannot read {type(buffer).__name__}: expected `{name}` to be an array of shape "
        f"{expected}, got {got}; use a buffer class that stores plain arrays as "
        "Stable-Baselines3 does."
    )


def _gatherer(
    buffer: Any, observation_key: str | None, normalizer: VecNormalize | None
) -> Callable[[IntArray, IntArray], Array]:
    """Return what copies observations out of a replay buffer, normalised as `sample()` does."""

    def gather(rows: IntArray, envs: IntArray) -> Array:
        if normalizer is None:
            raw: Array = observations_of(buffer, observation_key)[rows, envs]
            return raw
        observations = buffer.observations
        if not isinstance(observations, dict):
            normalized: Array = buffer._normalize_obs(observations[rows, envs], normalizer)
            return normalized
        # VecNormalize wants every key that it normalises.
        wanted = {observation_key, *(normalizer.norm_obs_keys or ())}
        cells = {key: observations[key][rows, envs] for key in wanted}
        entry: Array = buffer._normalize_obs(cells, normalizer)[observation_key]
        return entry

    return gather
