"""Emulators driven directly: played, stopped, and restarted with a byte of RAM changed."""

from functools import cache
from typing import NamedTuple

import ale_py
import numpy as np
import numpy.typing as npt
from ale_py import roms

from rl_infonce.atari import load_labels

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[np.int64]
NOOP = ale_py.Action.NOOP


def emulator(game: str) -> ale_py.ALEInterface:
    """Return a game without sticky actions, at the start of its first episode."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    path = roms.get_rom_path(game)
    assert path is not None
    ale.loadROM(path)
    return ale


def byte(game: str, name: str, version: str = "corrected") -> int:
    return load_labels(game, version)[name].byte


def decimal(values: npt.ArrayLike) -> Array:
    """Return 0 to 99 from two decimal digits in a byte."""
    high, low = np.divmod(np.asarray(values, np.int64), 16)
    return high * 10 + low


class Stops(NamedTuple):
    """A game, states in which it was stopped, and what held then.

    RAM [K, 128], lives [K], and the rewards since the episode began [K]; `start` is the RAM [128]
    with which episodes begin.
    """

    ale: ale_py.ALEInterface
    states: list[ale_py.ALEState]
    ram: Bytes
    lives: Array
    score: Array
    start: Bytes

    def after(self, state: int, action: ale_py.Action, n_frames: int) -> Array:
        """Return the RAM [128] after an action was held for some frames."""
        self.ale.restoreSystemState(self.states[state])
        for _ in range(n_frames):
            self.ale.act(action)
        return self.ale.getRAM().astype(np.int64)

    def written(self, state: int, byte: int, value: int) -> int:
        """Return the reward of one frame for which a byte was written."""
        self.ale.restoreSystemState(self.states[state])
        self.ale.setRAM(byte, value)
        return self.ale.act(NOOP)


@cache
def stops(game: str, n_states: int = 60, steps_between: int = 6) -> Stops:
    """Play at random, an action for 12 frames, and stop now and then after a pause."""
    ale, rng = emulator(game), np.random.default_rng(0)
    start, actions, score = ale.getRAM().copy(), ale.getMinimalActionSet(), 0
    states, ram, lives, scores = [], [], [], []
    for _ in range(n_states):
        for _ in range(steps_between):
            action = actions[rng.integers(len(actions))]
            score += sum(ale.act(action) for _ in range(12))
            if ale.game_over():
                ale.reset_game()
                score = 0
        score += sum(ale.act(NOOP) for _ in range(3))
        states.append(ale.cloneSystemState())
        ram.append(ale.getRAM().copy())
        lives.append(ale.lives())
        scores.append(score)
    return Stops(ale, states, np.stack(ram), np.array(lives), np.array(scores), start)


class Sighting(NamedTuple):
    """A byte after a frame for two values written, and the box of all pixels that differ then."""

    values: tuple[int, int]
    x: tuple[int, int]
    y: tuple[int, int]


def sightings(
    stopped: Stops, state: int, write: int, read: int, values: npt.ArrayLike, n_frames: int = 4
) -> list[Sighting]:
    """Write neighbouring values into a byte of the same state, and see what differs on the screen.

    An object then stands in two places, so that the box reaches from one to the other. Several
    frames, since some games draw their objects in turns.
    """
    ale, order = stopped.ale, np.unique(np.asarray(values))
    screens = np.zeros((len(order), n_frames, *ale.getScreenDims()), np.uint8)
    after = np.zeros((len(order), n_frames), np.int64)
    for i, value in enumerate(order):
        ale.restoreSystemState(stopped.states[state])
        ale.setRAM(write, int(value))
        for frame in range(n_frames):
            ale.act(NOOP)
            ale.getScreen(screens[i, frame])
            after[i, frame] = ale.getRAM()[read]
    found = []
    for i, frame in np.ndindex(len(order) - 1, n_frames):
        ys, xs = np.nonzero(screens[i, frame] != screens[i + 1, frame])
        if len(ys):
            pair = (int(after[i, frame]), int(after[i + 1, frame]))
            found.append(Sighting(pair, (xs.min(), xs.max()), (ys.min(), ys.max())))
    return found
