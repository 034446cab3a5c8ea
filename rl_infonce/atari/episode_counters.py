"""What each of N games has reached, and what a learner is told of it at every step."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]


class EpisodeCounters:
    """Raw returns and lengths so far of N games, their lives, and the frames they started at."""

    def __init__(self, n_games: int) -> None:
        self._made_at = time.time()
        self._returns = np.zeros(n_games, np.int64)
        self._lengths = np.zeros(n_games, np.int64)
        self._lives = np.zeros(n_games, np.int32)
        self._game_starts = np.zeros(n_games, np.int32)

    def reset(self, info: dict[str, Any]) -> None:
        """Begin with new games."""
        self._returns[:] = 0
        self._lengths[:] = 0
        self._lives = info["lives"].copy()
        self._game_starts = _game_starts(info)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all counters."""
        return {
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "lives": self._lives.copy(),
            "game_starts": self._game_starts.copy(),
        }

    def step(
        self, rewards: npt.NDArray[Any], terminated: Flags, truncated: Flags, info: dict[str, Any]
    ) -> tuple[Flags, list[dict[str, Any]]]:
        """Count a step; return which games restarted, and an info for each as SB3 wants it."""
        self._returns += rewards
        self._lengths += 1
        # ale_py restarts a finished game within the step; only then does the starting frame move
        # (the frame count within the game need not fall: a short game can end before the no-ops
        # of the next one do).
        starts = _game_starts(info)
        restarted = starts != self._game_starts
        # After a restart, `lives` is that of the new game. The game that is over has none, even if
        # its counter had more a step before (Gravitar, Amidar); one that was cut off keeps its own.
        left = np.where(restarted, np.where(terminated, 0, self._lives), info["lives"])
        infos: list[dict[str, Any]] = [
            {"lives": int(lives), "TimeLimit.truncated": bool(is_cut_off)}
            for lives, is_cut_off in zip(left, truncated & ~terminated, strict=True)
        ]
        for i in np.flatnonzero(restarted):
            seconds = round(time.time() - self._made_at, 6)
            length = int(self._lengths[i])
            infos[i]["episode"] = {"r": float(self._returns[i]), "l": length, "t": seconds}
            self._returns[i] = 0
            self._lengths[i] = 0
        self._game_starts = starts
        self._lives = info["lives"].copy()
        return restarted, infos


def _game_starts(info: dict[str, Any]) -> npt.NDArray[np.int32]:
    """Return the emulator frame at which each game started, [N]."""
    starts: npt.NDArray[np.int32] = info["frame_number"] - info["episode_frame_number"]
    return starts
