"""Emulators driven directly: played, stopped, and restarted with a byte of RAM changed."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import ale_py
import numpy as np
import numpy.typing as npt
from ale_py import roms

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


class Stops(NamedTuple):
    """A game, states in which it was stopped, and their RAM [K, 128]."""

    ale: ale_py.ALEInterface
    states: list[ale_py.ALEState]
    ram_at_stops: Bytes


@cache
def stops(game: str, n_states: int = 60, steps_between: int = 6) -> Stops:
    """Play at random, an action for 12 frames, and stop now and then after a pause."""
    ale, rng = emulator(game), np.random.default_rng(0)
    actions, states, ram = ale.getMinimalActionSet(), [], []
    for _ in range(n_states):
        for _ in range(steps_between):
            action = actions[rng.integers(len(actions))]
            for _ in range(12):
                ale.act(action)
            if ale.game_over():
                ale.reset_game()
        for _ in range(3):
            ale.act(NOOP)
        ram.append(ale.getRAM().copy())
        states.append(ale.cloneSystemState())
    return Stops(ale, states, np.stack(ram))


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
