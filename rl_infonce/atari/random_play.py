"""Play the missing shards of a collection at random, in one process per core."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import cv2
from loky import cpu_count
from loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

from rl_infonce.atari.collection import Collection
from rl_infonce.atari.shard_player import ShardPlayer
from rl_infonce.atari.shards import remove_partial_shard

_WAIT_SECONDS = 0.2  # Windows answers Ctrl-C only between two waits
_IDLE_SECONDS = 10  # a process that gets no shard for so long ends: its parent may be dead
_MIN_ROWS_PER_PROCESS = 2_000  # they take one second, and starting a process takes half of it


def play_at_random(
    collection: Collection, *, n_workers: int | None, show: Callable[[int], object]
) -> None:
    """Play every shard that a collection lacks by its named policy.

    It uses processes because emulators in threads wait for Python's lock after every frame, and two
    are no faster than one. `n_workers` None takes one process per core, fewer for little work;
    `show` is called with the number of rows that were played since its last call.
    """
    if n_workers is None:
        n_workers = min(cpu_count(), collection.n_rows_missing // _MIN_ROWS_PER_PROCESS)
    n_processes = min(n_workers, len(collection.missing))
    if n_processes > 1 and not multiprocessing.current_process().daemon:
        _play_in_processes(collection, n_processes, show)
        return
    for index in list(collection.missing):
        collection.finish(play_shard(collection.folder, collection.settings, index, show))


def play_shard(
    folder: Path, settings: Mapping[str, Any], index: int, show: Callable[[int], object]
) -> dict[str, Any]:
    """Play one shard by its named policy, calling `show` with 1 after every row."""
    keeps_noop = settings["policy"] == "random"
    names = enumerate(settings["actions"])
    allowed = [action for action, name in names if keeps_noop or name != "NOOP"]
    player = ShardPlayer(folder, settings, index)
    try:
        while player.n_rows_left:
            player.observe()
            player.act(allowed[player.acting.integers(len(allowed))])
            show(1)
        return player.writer.commit()
    finally:
        player.writer.discard()


def _play_in_processes(
    collection: Collection, n_processes: int, show: Callable[[int], object]
) -> None:
    folder, indices = collection.folder, list(collection.missing)
    # Loky's workers, unlike those of multiprocessing, do not run the user's script again.
    pool = ProcessPoolExecutor(n_processes, timeout=_IDLE_SECONDS, initializer=_prepare_worker)
    try:
        play = partial(_play_for, os.getpid(), folder, collection.settings)
        futures = [pool.submit(play, index) for index in indices]
        _wait(collection, futures, show)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"Expected to finish all shards in {folder}, but a process that played was killed, "
            "perhaps for want of memory. Finished shards are kept: collect again with the same "
            "settings, or with a smaller `n_workers`."
        ) from error
    finally:
        pool.shutdown(kill_workers=True)
        for index in indices:
            remove_partial_shard(folder, collection.settings, index)


def _play_for(parent: int, folder: Path, settings: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Play a shard while the parent lives; later, another process may write into the folder."""

    def stop_if_orphaned(_n_rows: int) -> None:
        if _is_orphan(parent):
            os._exit(1)

    return play_shard(folder, settings, index, stop_if_orphaned)


def _is_orphan(parent: int) -> bool:
    # Loky hands its workers a sentinel on Windows only, where getppid() still names a dead parent.
    process = multiprocessing.parent_process()
    if process is not None and process.sentinel is not None:
        return not process.is_alive()
    return os.getppid() != parent


def _prepare_worker() -> None:
    cv2.setNumThreads(1)  # its own threads would take the cores of the other workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers


def _wait(
    collection: Collection, futures: list[Future[dict[str, Any]]], show: Callable[[int], object]
) -> None:
    """List all shards that succeeded before raising the failure of another."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, _WAIT_SECONDS, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda each: each.exception() is not None):
            entry = future.result()
            collection.finish(entry)
            show(entry["rows"])
