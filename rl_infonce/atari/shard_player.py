"""One emulator and the shard it fills, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_infonce.atari.emulator import N_SEEDS, NOOP_MAX, Emulator
from rl_infonce.atari.shards import AGENT_SIZE, N_STACKED, ShardWriter, columns, shard_rows


class ShardPlayer:
    """One emulator and the shard it fills: `observe`, then `act`, once per row.

    The emulator's seed and its idle frames depend on the collection's seed and the shard's index
    only, so that a shard is always the same, whichever process plays it. `acting`, for random
    actions, is seeded like the emulator. `stack` [4, 84, 84] is what an agent sees in the state of
    the last `observe`, kept up to date if `stacks` is given.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], index: int, *, stacks: bool = False
    ) -> None:
        root = np.random.SeedSequence(settings["seed"], spawn_key=(index,))
        machine, idling, acting = (np.random.default_rng(child) for child in root.spawn(3))
        self.acting = acting
        self._idling = idling
        self._emulator = Emulator(settings["game"], int(machine.integers(N_SEEDS)))
        rows = shard_rows(settings, index)
        self._row = self._episode_id = rows.start
        self._lives = 0
        self._stacks = stacks
        self.stack: npt.NDArray[np.uint8] = np.zeros((N_STACKED, AGENT_SIZE, AGENT_SIZE), np.uint8)
        self.n_rows_left = len(rows)
        content = columns(settings)
        self.writer = ShardWriter(folder, index, len(rows), content)

    def observe(self) -> None:
        """Write the state: images, RAM, lives and ids, all from the same instant."""
        emulator, buffers, position = self._emulator, self.writer.buffers, self.writer.position
        is_new_game = emulator.is_over
        if is_new_game:
            emulator.restart(int(self._idling.integers(NOOP_MAX)))
        lives = emulator.lives
        if is_new_game or 0 < lives < self._lives:  # some games count 0 in their last life
            self._episode_id = self._row
        self._lives = lives
        emulator.read_ram(buffers["ram"][position])
        buffers["episode_ids"][position] = self._episode_id
        buffers["game_starts"][position] = is_new_game
        buffers["lives"][position] = lives
        if "screen" in buffers:
            buffers["screen"][position] = emulator.screen
        if "agent" in buffers:
            emulator.render_agent_view(buffers["agent"][position])
        if self._stacks:
            self._push_onto_stack(is_new_game)

    def act(self, action: int) -> None:
        """Take an action in the observed state, and write the action and its reward."""
        buffers, position = self.writer.buffers, self.writer.position
        buffers["actions"][position] = action
        buffers["rewards"][position] = self._emulator.step(action)
        self.writer.advance()
        self._row += 1
        self.n_rows_left -= 1

    def _push_onto_stack(self, is_new_game: bool) -> None:
        if is_new_game:
            self.stack[:] = 0
        self.stack[:-1] = self.stack[1:].copy()
        self._emulator.render_agent_view(self.stack[-1])
