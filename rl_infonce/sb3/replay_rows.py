"""Rows of a replay buffer, found by the observations that SB3 hands out."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from rl_infonce.copies import row_sums
from rl_infonce.sb3.buffers import observations_of
from rl_infonce.sb3.episode_index import Array
from rl_infonce.sb3.experience import Experience
from rl_infonce.sb3.minibatch import ABSENT, AMBIGUOUS
from rl_infonce.temporal import IntArray


class ReplayRows:
    """Finds rows of a replay buffer by the sums of their observations' bytes.

    SB3 draws the rows of a minibatch and keeps their places to itself. Sums are kept for every row,
    and made for the rows that were added since; a row that is found by its sum is then compared
    byte by byte.

    Args:
        observation_key: Entry of the observations, where they are dictionaries.
    """

    def __init__(self, observation_key: str | None = None) -> None:
        self.observation_key = observation_key
        self._buffer: weakref.ref[Array] | None = None
        self._pos = self._n_filled = 0
        self._sums: list[int | None] = []
        self._places_with: dict[int, int | set[int]] = {}

    def find(self, algorithm: BaseAlgorithm, minibatch: Any) -> IntArray:
        """Return the place row * n_envs + env of each observation [K] of a minibatch.

        It is `AMBIGUOUS` where several rows have this observation, or an earlier one of the
        minibatch is the same, and `ABSENT` where no row has it.
        """
        buffer: Any = algorithm.replay_buffer  # type: ignore[attr-defined]
        cells = observations_of(buffer, self.observation_key)
        drawn = observations_of(minibatch, self.observation_key).cpu().numpy()
        if drawn.dtype != cells.dtype or drawn.shape[1:] != cells.shape[2:]:  # normalised, perhaps
            return np.full(len(drawn), ABSENT, dtype=np.int64)
        self._update(buffer, cells)
        places = np.array([self._place_with(each) for each in row_sums(drawn).tolist()])
        for k, place in enumerate(places):
            if place >= 0 and _cell(cells, place).tobytes() != drawn[k].tobytes():
                places[k] = ABSENT
        _, first = np.unique(places, return_index=True)
        repeated = np.setdiff1d(np.arange(len(places)), first)
        places[repeated] = np.minimum(places[repeated], AMBIGUOUS)
        return places

    def _place_with(self, total: int) -> int:
        places = self._places_with.get(total, ABSENT)
        return places if isinstance(places, int) else AMBIGUOUS

    def _update(self, buffer: Any, cells: Array) -> None:
        """Sum the rows that were added since the last call, or all where that cannot be told."""
        n_rows, n_envs = cells.shape[:2]
        n_filled = n_rows if buffer.full else buffer.pos
        if self._goes_on(cells, n_filled):
            n_new = (buffer.pos - self._pos) % n_rows
        else:
            n_new = n_filled
            self._buffer, self._places_with = weakref.ref(cells), {}
            self._sums = [None] * (n_rows * n_envs)
        self._pos, self._n_filled = buffer.pos, n_filled
        for row in (buffer.pos - n_new + np.arange(n_new)) % n_rows:
            for env, total in enumerate(row_sums(cells[row]).tolist()):
                self._put(int(row) * n_envs + env, total)
        if buffer.full and getattr(buffer, "optimize_memory_usage", False):
            for env in range(n_envs):  # where the observation after the newest row stands already
                self._put(buffer.pos * n_envs + env, None)

    def _goes_on(self, cells: Array, n_filled: int) -> bool:
        """Return whether rows were added, and fewer than all, as the newest one is still there."""
        n_rows, n_envs = cells.shape[:2]
        is_same = self._buffer is not None and self._buffer() is cells
        if not is_same or n_filled < self._n_filled:
            return False
        newest = (self._pos - 1) % n_rows
        sums: list[int] = row_sums(cells[newest]).tolist()
        return sums == self._sums[newest * n_envs : (newest + 1) * n_envs]

    def _put(self, place: int, total: int | None) -> None:
        """Note the sum of a row in place of what it held before."""
        former, self._sums[place] = self._sums[place], total
        if former is not None:
            places = self._places_with.pop(former)
            if isinstance(places, set):
                places.remove(place)
                self._places_with[former] = places if len(places) > 1 else places.pop()
        if total is not None:
            known = self._places_with.setdefault(total, place)
            if isinstance(known, set):
                known.add(place)
            elif known != place:
                self._places_with[total] = {known, place}


def _cell(cells: Array, place: int) -> Array:
    cell: Array = cells[divmod(int(place), cells.shape[1])]
    return cell


def by_age(places: IntArray, experience: Experience) -> IntArray:
    """Return places [K] of a ring as step * n_envs + env; negative ones stay.

    A row that no longer counts, as its slot is about to be written anew, is `AMBIGUOUS`.
    """
    rows, envs = np.divmod(places, experience.n_envs)
    steps = experience.ages(rows)
    found = np.where(steps < experience.n_steps, steps * experience.n_envs + envs, AMBIGUOUS)
    return np.where(places >= 0, found, places)
