"""Save a replay buffer as files of some rows each; a checkpoint writes those that changed."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from rl_infonce.files.digests import sha256_of
from rl_infonce.files.durable import replace_bytes
from rl_infonce.files.npy_rows import open_rows
from rl_infonce.runs.checkpoints import SHARED

_BYTES_OF_A_SHARD = 2**24
_KNOWN = (ReplayBuffer, DictReplayBuffer, NStepReplayBuffer)

Array = npt.NDArray[Any]


class UnknownBufferError(TypeError):
    """A replay buffer has a class that holds more than its rows."""


class ReplayShards:
    """Writes a replay buffer into a folder that all checkpoints of a run share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, str] = {}  # place in the buffer to path
        self._digests: dict[str, str] = {}
        self._n_added, self._pos, self._is_full = 0, 0, False

    def save(self, buffer: ReplayBuffer, n_added: int) -> dict[str, Any]:
        """Write the rows added since the last call, and return what `load_replay` needs.

        `n_added` counts the rows that `learn` ever added; where others added some, all are written.
        Rows that cannot be written now are written by the next call.
        """
        if type(buffer) not in _KNOWN:
            names = ", ".join(each.__name__ for each in _KNOWN)
            raise UnknownBufferError(
                f"Expected a buffer of class {names}, got {type(buffer).__name__}, whose rows are "
                "not saved."
            )
        n_rows = buffer.buffer_size if buffer.full else buffer.pos
        changed = (buffer.pos - 1 - np.arange(self._n_fresh(buffer, n_added))) % buffer.buffer_size
        shards: dict[str, list[str]] = {}
        for name, array in arrays_of(buffer):
            n_per_shard = max(_BYTES_OF_A_SHARD // max(array[:1].nbytes, 1), 1)
            stale = set((changed // n_per_shard).tolist())
            shards[name] = [
                self._shard(name, index, array[:n_rows], n_per_shard, index in stale)
                for index in range(-(-n_rows // n_per_shard))
            ]
        self._n_added, self._pos, self._is_full = n_added, buffer.pos, buffer.full
        return {
            "pos": buffer.pos,
            "full": buffer.full,
            "n_added": n_added,
            "shards": shards,
            "sha256": {path: self._digests[path] for each in shards.values() for path in each},
        }

    def adopt(self, saved: Mapping[str, Any]) -> None:
        """Take over the files that an earlier process wrote, after their rows were loaded."""
        self._digests = dict(saved["sha256"])
        self._written = {path.rpartition("-")[0]: path for path in self._digests}
        self._n_added = int(saved["n_added"])
        self._pos, self._is_full = int(saved["pos"]), bool(saved["full"])

    def _n_fresh(self, buffer: ReplayBuffer, n_added: int) -> int:
        """Return how many of the newest rows differ from what was written: all if in doubt."""
        n_rows = buffer.buffer_size if buffer.full else buffer.pos
        n_new = n_added - self._n_added  # of `learn`, which may not be alone
        end = self._pos + n_new
        is_full = self._is_full or end >= buffer.buffer_size
        is_alone = (buffer.pos, buffer.full) == (end % buffer.buffer_size, is_full)
        return min(n_new, n_rows) if is_alone else n_rows

    def _shard(self, name: str, index: int, rows: Array, n_per_shard: int, is_stale: bool) -> str:
        """Return the path of a shard below the folder, written if it has changed."""
        place = f"{SHARED}/{quote(name, safe='')}-{index:06d}"
        if place in self._written and not is_stale:
            return self._written[place]
        content = _npy(rows[index * n_per_shard : (index + 1) * n_per_shard])
        digest = sha256_of(content)
        path = f"{place}-{digest[:16]}.npy"
        (self._folder / SHARED).mkdir(parents=True, exist_ok=True)
        replace_bytes(self._folder / path, content)  # a file of that name may be damaged
        self._digests.pop(self._written.get(place, ""), None)
        self._written[place], self._digests[path] = path, digest
        return path


def load_replay(buffer: ReplayBuffer, saved: Mapping[str, Any], folder: Path) -> None:
    """Fill a replay buffer with the rows of a saved one of the same sizes and number formats.

    The files below the folder agree with their digests; the names in `saved` may be anyone's.
    """
    if saved["pos"] not in range(buffer.buffer_size):
        raise ValueError(
            f"Expected the next row to be one of {buffer.buffer_size}, got {saved['pos']!r}."
        )
    n_rows = buffer.buffer_size if saved["full"] else int(saved["pos"])
    arrays = dict(arrays_of(buffer))
    if arrays.keys() != saved["shards"].keys():
        raise ValueError(
            f"Expected a replay buffer with {sorted(saved['shards'])}, got {sorted(arrays)}."
        )
    for name, paths in saved["shards"].items():
        start = 0
        for path in paths:
            rows = open_rows(_inside(folder, path), arrays[name].dtype, arrays[name].shape[1:])
            target = arrays[name][start : start + len(rows)]
            if len(target) != len(rows):
                raise ValueError(
                    f"Expected at most {len(target)} rows in {folder / path}, got {len(rows)}. Is "
                    "`buffer_size` the same?"
                )
            target[...] = rows
            start += len(rows)
        if start != n_rows:
            raise ValueError(f"Expected {n_rows} rows of {name}, got {start}.")
    buffer.pos, buffer.full = int(saved["pos"]), bool(saved["full"])


def end_last_episode(buffer: ReplayBuffer) -> None:
    """Let the newest row end its episode, where another one begins behind it.

    A buffer without timeouts, as lean ones are (`optimize_memory_usage`), takes it for a terminal
    state: SB3 does so where `learn` counts steps anew.
    """
    row = (buffer.pos - 1) % buffer.buffer_size
    if buffer.handle_timeout_termination:
        buffer.timeouts[row, buffer.dones[row] == 0] = True  # a terminal state stays one
    else:
        buffer.dones[row] = True


def _inside(folder: Path, name: str) -> Path:
    """Return a path below a folder; anyone may have written the names in a state."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"Expected the name of a file inside {folder}, got {name!r}.")
    return folder / name


def arrays_of(buffer: ReplayBuffer) -> Iterator[tuple[str, Array]]:
    """Yield the name and the rows of each array of a replay buffer, also of dictionaries."""
    for name, value in vars(buffer).items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, dict) and name in ("observations", "next_observations"):
            for key, array in value.items():
                yield f"{name}.{key}", array


def _npy(rows: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(rows), allow_pickle=False)
    return file.getvalue()
