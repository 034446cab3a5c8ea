"""Play the missing shards of a collection: by chance, or by a function in lock-step."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from rl_infonce.atari.collection import Collection
from rl_infonce.atari.emulator import AGENT_SIZE, N_STACKED, NOOP_MAX, Emulator
from rl_infonce.atari.shards import ShardWriter

__all__ = ["Policy", "ShardPlayer", "checked_actions", "play"]

Policy = Callable[[npt.NDArray[np.uint8]], npt.ArrayLike]

_N_SEEDS = 2**31  # the emulator keeps its seed in a signed 32-bit integer
_GROUP_SIZE = 8  # shards in lock-step: what an interruption loses, and a network's batch
_REFRESH_SECONDS = 0.2
_FULL_DISK = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


class ShardPlayer:
    """One emulator and the shard it fills: `observe`, then `act`, once per row.

    The emulator's seed and its idle frames depend on the collection's seed and the shard's index
    only, so that a shard is the same whoever plays it, and whenever.

    Args:
        collection: Which lacks the shard.
        index: Of the shard.
        stacks: Whether to keep `stack` up to date, for a policy that looks at it.

    Attributes:
        acting: Generator for random actions, seeded like the emulator.
        stack: [4, 84, 84] uint8, what an agent sees in the state of the last `observe`.
        n_rows_left: Rows still to be played.
        writer: Of the shard.
    """

    def __init__(self, collection: Collection, index: int, *, stacks: bool = False) -> None:
        root = np.random.SeedSequence(collection.settings["seed"], spawn_key=(index,))
        machine, idling, acting = (np.random.default_rng(child) for child in root.spawn(3))
        self.acting = acting
        self._idling = idling
        self._emulator = Emulator(collection.settings["game"], int(machine.integers(_N_SEEDS)))
        self._row = self._episode_id = collection.first_row(index)
        self._lives = 0
        self._stacks = stacks
        self.stack: npt.NDArray[np.uint8] = np.zeros((N_STACKED, AGENT_SIZE, AGENT_SIZE), np.uint8)
        self.n_rows_left = collection.n_rows(index)
        self.writer: ShardWriter = collection.open_writer(index)

    def observe(self) -> None:
        """Write the state: images, RAM, lives and ids, all of the same instant."""
        emulator, buffers, position = self._emulator, self.writer.buffers, self.writer.position
        is_new_game = emulator.is_over
        if is_new_game:
            emulator.restart(int(self._idling.integers(NOOP_MAX)))
        lives = emulator.lives
        if is_new_game or lives < self._lives:
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
        """Take an action in the state that was observed, and write both it and its reward."""
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


def play(
    collection: Collection, policy: str | Policy, *, n_workers: int, progress: bool = False
) -> None:
    """Play every shard that a collection lacks.

    Args:
        collection: Where the shards go.
        policy: "random", "random_without_noop" or a function, as `collect` describes them.
        n_workers: Threads, at least 1. The emulator runs without Python's lock, so they do run at
            once.
        progress: Whether to show a bar.

    Raises:
        TypeError: If the function returns no integers.
        ValueError: If it returns actions of another shape or range.
        OSError: If the disk is full; finished shards are kept.
    """
    settings = collection.settings
    n_steps, n_left = settings["n_steps"], collection.n_rows_missing
    bar = tqdm(
        total=n_steps,
        initial=n_steps - n_left,
        desc=settings["game"],
        unit="step",
        disable=not progress,
    )
    try:
        with bar, ThreadPoolExecutor(n_workers, "collect") as pool:
            if isinstance(policy, str):
                _play_at_random(collection, pool, bar)
            else:
                _play_in_lockstep(collection, policy, pool, n_workers, bar)
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        raise collection.full_disk() from error


class _StopPlayingError(Exception):
    """Another shard failed, or the user pressed Ctrl-C."""


def _play_at_random(collection: Collection, pool: ThreadPoolExecutor, bar: Any) -> None:
    settings = collection.settings
    names = enumerate(settings["actions"])
    keeps_noop = settings["policy"] == "random"
    allowed = [action for action, name in names if keeps_noop or name != "NOOP"]
    n_played = [0] * settings["n_shards"]
    stop = threading.Event()

    def play_shard(index: int) -> None:
        player = ShardPlayer(collection, index)
        try:
            while player.n_rows_left:
                player.observe()
                player.act(allowed[player.acting.integers(len(allowed))])
                n_played[index] += 1
                if stop.is_set():
                    raise _StopPlayingError
            collection.finish(player.writer)
        finally:
            player.writer.discard()

    futures = [pool.submit(play_shard, index) for index in list(collection.missing)]
    try:
        _wait(futures, n_played, bar)
    finally:
        stop.set()
        for future in futures:
            future.cancel()


def _wait(futures: Iterable[Future[None]], n_played: Sequence[int], bar: Any) -> None:
    pending, n_shown = set(futures), 0
    while pending:
        done, pending = wait(pending, _REFRESH_SECONDS, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        n_done = sum(n_played)
        bar.update(n_done - n_shown)
        n_shown = n_done


def _play_in_lockstep(
    collection: Collection, policy: Policy, pool: ThreadPoolExecutor, n_workers: int, bar: Any
) -> None:
    n_actions = len(collection.settings["actions"])
    for start in range(0, collection.settings["n_shards"], _GROUP_SIZE):
        group = [i for i in range(start, start + _GROUP_SIZE) if i in collection.missing]
        players: list[ShardPlayer] = []
        try:
            players += [ShardPlayer(collection, index, stacks=True) for index in group]
            shares = [players[i::n_workers] for i in range(min(n_workers, len(players)))]
            _each(pool, shares, lambda player: player.observe())
            while any(player.n_rows_left for player in players):
                answer = policy(np.stack([player.stack for player in players]))
                actions = checked_actions(answer, len(players), n_actions)
                step = partial(_step, actions=dict(zip(players, actions, strict=True)))
                _each(pool, shares, step)
                bar.update(len(players))
            for player in players:
                collection.finish(player.writer)
        finally:
            for player in players:
                player.writer.discard()


def _each(
    pool: ThreadPoolExecutor,
    shares: Sequence[Sequence[ShardPlayer]],
    do: Callable[[ShardPlayer], object],
) -> None:
    """Do something with every player, one share of them per thread, and wait for it."""

    def do_share(share: Sequence[ShardPlayer]) -> None:
        for player in share:
            do(player)

    for future in [pool.submit(do_share, share) for share in shares]:
        future.result()


def _step(player: ShardPlayer, actions: Mapping[ShardPlayer, int]) -> None:
    if player.n_rows_left:
        player.act(actions[player])
    if player.n_rows_left:
        player.observe()


def checked_actions(actions: Any, n_observations: int, n_actions: int) -> list[int]:
    """Return the actions of a policy as ints.

    Raises:
        TypeError: If they are no integers.
        ValueError: If there is not one action in 0..n_actions-1 per observation.
    """
    if isinstance(actions, tuple):
        raise TypeError(
            "Expected `policy` to return actions [B], got a tuple. For `predict` of a model of "
            "Stable-Baselines3 pass rl_infonce.sb3.policies.epsilon_greedy_policy(model, ...)."
        )
    array = np.asarray(actions)
    if array.shape != (n_observations,):
        raise ValueError(
            f"Expected `policy` to return actions of shape ({n_observations},), got {array.shape}."
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"Expected `policy` to return integers, got dtype {array.dtype}.")
    if array.min() < 0 or array.max() >= n_actions:
        raise ValueError(f"Expected `policy` to return actions in 0..{n_actions - 1}, got {array}.")
    return [int(action) for action in array]
