"""Episode ids of a replay buffer's rows, kept up to date at the cost of the new rows alone."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.temporal import BoolArray, IntArray

Array = npt.NDArray[Any]

_COMPARED_ROWS = 64


class Clock(NamedTuple):
    """How far the current `learn()` has come."""

    learn: float  # its start time, an identity
    n_rows: int  # rows it has added
    continued: bool  # it may have gone on with the environments of the one before


class Ring(NamedTuple):
    """The checked arrays of a replay buffer; R rows, N environments."""

    observations: Array  # [R, N, ...]
    next_observations: Array | None  # [R, N, ...]
    actions: Array  # [R, N, A]
    dones: Array  # [R, N]
    pos: int
    full: bool

    @property
    def n_filled(self) -> int:
        """How many rows have been written."""
        return len(self.dones) if self.full else self.pos


@dataclass
class _Memory:
    """What a read leaves behind for the next one."""

    arrays: tuple[weakref.ref[Array], weakref.ref[Array]]
    pos: int
    n_filled: int
    clock: Clock
    newest: tuple[Array, Array]  # observation and actions of the newest row

    def is_of(self, ring: Ring) -> bool:
        return self.arrays[0]() is ring.observations and self.arrays[1]() is ring.dones


class EpisodeIndex:
    """Episode ids [R, N] of the rows of a ring, extended by the rows added since the last update.

    A row starts an episode if the row before it is done, if its observation is not the one that the
    row before announced, as where an `add` of the user's own stores more or fewer rows than there
    are steps, or if it is the first of a `learn()`, which may reset the environments without a
    mark. The second of a `learn()` that continues starts one also, as a step may be missing before
    it: short ones leave few pairs.
    A buffer with `optimize_memory_usage` keeps no announcements: of one that is loaded, borders
    without a done, where a `learn()` of an earlier session began, are not seen.
    """

    def __init__(self) -> None:
        self.ids: IntArray = np.zeros((0, 0), dtype=np.int64)
        self._memory: _Memory | None = None

    def update(self, ring: Ring, clock: Clock) -> IntArray:
        """Return the ids [R, N] of all rows; rows never written hold any number."""
        n_new = self._n_new(ring, clock)
        if n_new is None:
            self.ids = np.zeros(ring.dones.shape, dtype=np.int64)
            n_new = ring.n_filled
        if n_new:
            self._extend(ring, clock, n_new)
        self._remember(ring, clock)
        return self.ids

    def _n_new(self, ring: Ring, clock: Clock) -> int | None:
        """Count the rows added since the last update; None if that cannot be told."""
        memory = self._memory
        if memory is None or not memory.is_of(ring) or ring.n_filled < memory.n_filled:
            return None
        newest = ring.observations[memory.pos - 1, 0], ring.actions[memory.pos - 1]
        if not all(map(_same_bytes, newest, memory.newest)):
            return None
        n_new = (ring.pos - memory.pos) % len(ring.dones)
        n_counted, limit = clock.n_rows, n_new + 1
        if memory.clock.learn == clock.learn:
            n_counted, limit = n_counted - memory.clock.n_rows, len(ring.dones)
        overwritten = n_counted >= len(ring.dones)
        return None if overwritten or n_counted > limit else n_new

    def _vouches(self, ring: Ring, clock: Clock, n_new: int) -> bool:
        """Tell whether the newest of the new rows are the ones that this `learn()` counted."""
        n_counted = clock.n_rows
        adds_up = n_counted <= n_new + 1
        if self._memory is not None and self._memory.clock.learn == clock.learn:
            n_counted -= self._memory.clock.n_rows
            adds_up = abs(n_counted - n_new) <= 1
        overwritten = n_new == len(ring.dones) and n_counted >= n_new
        return adds_up or overwritten

    def _extend(self, ring: Ring, clock: Clock, n_new: int) -> None:
        rows = (ring.pos - n_new + np.arange(n_new)) % len(ring.dones)
        starts = ring.dones[rows - 1] != 0  # [n_new, N]; row -1 is the last one of the ring
        if self._vouches(ring, clock, n_new):
            first = n_new - clock.n_rows
            starts[max(first, 0) : max(first + 1, 0)] = True
            if clock.continued:
                # A callback that stops a learn() swallows a step; the next one does not know.
                starts[max(first + 1, 0) : max(first + 2, 0)] = True
        starts |= _breaks(ring, rows)
        self.ids[rows] = self.ids[rows[0] - 1] + np.cumsum(starts, axis=0)

    def _remember(self, ring: Ring, clock: Clock) -> None:
        if ring.n_filled == 0:
            self._memory = None
            return
        arrays = weakref.ref(ring.observations), weakref.ref(ring.dones)
        newest = ring.observations[ring.pos - 1, 0].copy(), ring.actions[ring.pos - 1].copy()
        self._memory = _Memory(arrays, ring.pos, ring.n_filled, clock, newest)


def _breaks(ring: Ring, rows: IntArray) -> BoolArray:
    """Tell where the observation of a row is not the one that the row before announced: [L, N]."""
    n_envs = ring.dones.shape[1]
    breaks = np.zeros((len(rows), n_envs), dtype=np.bool_)
    if ring.next_observations is None:
        return breaks
    for begin in range(0, len(rows), _COMPARED_ROWS):
        some = rows[begin : begin + _COMPARED_ROWS]
        found = _bytes_of(ring.observations[some], n_envs)
        announced = _bytes_of(ring.next_observations[some - 1], n_envs)
        breaks[begin : begin + _COMPARED_ROWS] = (found != announced).any(axis=-1)
    return breaks


def _bytes_of(array: Array, n_envs: int) -> npt.NDArray[np.uint8]:
    """View [L, N, ...] as bytes [L, N, bytes], for which NaN equals NaN."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), n_envs, -1)


def _same_bytes(first: Array, second: Array) -> bool:
    return first.tobytes() == second.tobytes()
