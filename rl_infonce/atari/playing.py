"""Play the missing shards of a collection at random, or by a function in lock-step."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from rl_infonce.atari.collection import Collection
from rl_infonce.atari.emulator import checked_actions
from rl_infonce.atari.random_play import play_at_random
from rl_infonce.atari.shard_player import ShardPlayer

Policy = Callable[[npt.NDArray[np.uint8]], npt.ArrayLike]

_GROUP_SIZE = 8  # shards in lock-step: an interruption loses them, and they are a network's batch
_FULL_DISK = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def play(
    collection: Collection, policy: str | Policy, *, n_workers: int | None, progress: bool = False
) -> None:
    """Play every shard that a collection lacks; arguments are those of `collect`.

    If the disk is full or a process was killed, an `OSError` says so, and finished shards are kept.
    """
    settings = collection.settings
    n_steps, n_left = settings["n_steps"], collection.n_rows_missing
    try:
        with tqdm(
            total=n_steps,
            initial=n_steps - n_left,
            desc=settings["game"],
            unit="step",
            disable=not progress,
        ) as bar:
            if isinstance(policy, str):
                play_at_random(collection, n_workers=n_workers, show=bar.update)
            else:
                _play_in_lockstep(collection, policy, show=bar.update)
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        raise collection.full_disk() from error


def _play_in_lockstep(
    collection: Collection, policy: Policy, show: Callable[[int], object]
) -> None:
    for start in range(0, collection.settings["n_shards"], _GROUP_SIZE):
        group = [i for i in range(start, start + _GROUP_SIZE) if i in collection.missing]
        _play_group(collection, group, policy, show)


def _play_group(
    collection: Collection, group: list[int], policy: Policy, show: Callable[[int], object]
) -> None:
    settings = collection.settings
    players: list[ShardPlayer] = []
    try:
        for index in group:
            players.append(ShardPlayer(collection.folder, settings, index, stacks=True))
            players[-1].observe()
        while n_playing := sum(player.n_rows_left > 0 for player in players):
            answer = policy(np.stack([player.stack for player in players]))
            actions = _actions_of(answer, len(players), len(settings["actions"]))
            for player, action in zip(players, actions, strict=True):
                _step(player, action)
            show(n_playing)
        for player in players:
            collection.finish(player.writer.commit())
    finally:
        for player in players:
            player.writer.discard()


def _step(player: ShardPlayer, action: int) -> None:
    if player.n_rows_left:
        player.act(action)
    if player.n_rows_left:
        player.observe()


def _actions_of(answer: Any, n_observations: int, n_actions: int) -> list[int]:
    """Return the actions of a policy as ints."""
    if isinstance(answer, tuple):
        raise TypeError(
            "Expected `policy` to return actions [B], got a tuple. Instead of an SB3 model's "
            "`predict`, pass rl_infonce.agents.epsilon_greedy_policy(model, ...)."
        )
    actions = checked_actions("the actions of `policy`", answer, n_observations, n_actions)
    return [int(action) for action in actions]
