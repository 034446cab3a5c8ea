"""One game with readable RAM, played frame by frame as `make_atari_vec_env` plays it."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import ale_py
import cv2
import numpy as np
import numpy.typing as npt
from ale_py import roms

from rl_infonce.atari.shards import AGENT_SIZE

Image = npt.NDArray[np.uint8]

FRAME_SKIP = 4
NOOP_MAX = 30
MAX_FRAMES_PER_GAME = 108_000  # 30 minutes at 60 Hz
N_SEEDS = 2**31  # the emulator keeps its seed in a signed 32-bit integer


def checked_actions(
    what: str, actions: npt.ArrayLike, n_games: int, n_actions: int
) -> npt.NDArray[np.int64]:
    """Return actions [n_games], checked: an illegal one would kill a thread of the emulator.

    `what` begins the message, as "`actions`".
    """
    array = np.asarray(actions)
    if array.shape != (n_games,):
        raise ValueError(f"Expected {what} of shape ({n_games},), got {array.shape}.")
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"Expected {what} to be integers, got dtype {array.dtype}.")
    if array.min() < 0 or array.max() >= n_actions:
        raise ValueError(f"Expected {what} in 0..{n_actions - 1}, got {array}.")
    return array.astype(np.int64)


def make_ale(game: str, seed: int) -> Any:
    """Return a seeded `ALEInterface` with the game loaded, without sticky actions.

    The seed, in 0..2**31 - 1, decides what RAM holds when the machine is switched on.
    """
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", seed)
    ale.loadROM(str(roms.get_rom_path(game)))
    return ale


class GameFacts(NamedTuple):
    """The names of a game's own actions in the order of their indices, and its height and width."""

    actions: tuple[str, ...]
    screen_shape: tuple[int, int]


@cache
def game_facts(game: str) -> GameFacts:
    """Return the facts about a game; the first call loads the game, which takes 0.1 s."""
    ale = make_ale(game, seed=0)
    height, width = ale.getScreenDims()
    return GameFacts(tuple(action.name for action in ale.getMinimalActionSet()), (height, width))


class Emulator:
    """One game whose images are, bit for bit, those of `make_atari_vec_env`, and its RAM.

    After `restart` and after every `step` that does not end the game, `screen` and what `read_ram`
    writes belong to the same emulator state. A `step` that ends the game does not change `screen`,
    as in ale_py's native environment: nobody acts in that state, so call `restart`.

    `screen` [H, W] is the emulator's gray, the maximum of the last two frames, 210 by 160 in all
    games with labels; the next step overwrites it.
    """

    def __init__(self, game: str, seed: int) -> None:
        self._ale = make_ale(game, seed)
        self._actions = self._ale.getMinimalActionSet()
        self._presses_fire = ale_py.Action.FIRE in self._actions
        self._n_frames = 0
        height, width = self._ale.getScreenDims()
        self._previous: Image = np.zeros((height, width), np.uint8)
        self.screen: Image = np.zeros((height, width), np.uint8)
        self.is_over = True

    @property
    def lives(self) -> int:
        """Return the lives left; always 0 in games without lives."""
        return int(self._ale.lives())

    def restart(self, n_idle_frames: int) -> None:
        """Start a new game and let it idle for some frames; `make_atari_vec_env` draws 0 to 29.

        The first idle frame presses FIRE in games that have it, since some games wait for it; a
        game with FIRE therefore takes at least one frame.
        """
        self._ale.reset_game()
        if self._presses_fire:
            self._ale.act(ale_py.Action.FIRE)
        for _ in range(n_idle_frames - self._presses_fire):
            self._ale.act(ale_py.Action.NOOP)
            if self._ale.game_over():
                self._ale.reset_game()
        self._ale.getScreenGrayscale(self.screen)
        self._n_frames = 0
        self.is_over = False

    def step(self, action: int) -> int:
        """Hold one of the game's own actions for four frames and return their raw reward."""
        joystick = self._actions[action]
        reward = 0
        for frame in range(FRAME_SKIP):
            reward += int(self._ale.act(joystick))
            self._n_frames += 1
            if self._ale.game_over() or self._n_frames >= MAX_FRAMES_PER_GAME:
                self.is_over = True
                return reward
            if frame == FRAME_SKIP - 2:
                self._ale.getScreenGrayscale(self._previous)
        self._ale.getScreenGrayscale(self.screen)
        np.maximum(self.screen, self._previous, out=self.screen)
        return reward

    def read_ram(self, out: npt.NDArray[np.uint8]) -> None:
        """Write the 128 bytes of RAM into `out` [128] uint8."""
        self._ale.getRAM(out)

    def render_agent_view(self, out: Image) -> None:
        """Write `screen` as the agent sees it into `out` [84, 84] uint8."""
        cv2.resize(self.screen, (AGENT_SIZE, AGENT_SIZE), dst=out, interpolation=cv2.INTER_AREA)
