"""A run's logs in the terminal, in TensorBoard and as CSV, seamless over a restart.

Rows that a full disk refuses wait in memory until the disk takes them; training goes on.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import (
    HumanOutputFormat,
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
)

from rl_infonce.checks import warn_user
from rl_infonce.files.csv_log import CSVLog


def run_logger(
    run_dir: Path, tb_dir: Path, *, first_step: int, goes_on: bool, on_screen: bool
) -> Logger:
    """Return a logger that continues after a step and drops what was logged beyond it.

    `goes_on` says whether there may be logs of the run already.
    """
    table = CSVFormat(run_dir / "progress.csv", first_step)
    board = _Board(str(tb_dir))
    if goes_on:
        board.begin_file(purge_step=first_step + 1)
    formats: list[KVWriter] = [board, table]
    if on_screen:
        formats.append(HumanOutputFormat(sys.stdout))
    return Logger(str(tb_dir), formats)


Excluded = dict[str, tuple[str, ...]]
Row = tuple[dict[str, Any], Excluded, int]


class _Waiting:
    """Rows that are to be written, and wait while the disk refuses them.

    `write` hands a row over, and `reopen` begins a new file; they and `close` may raise
    OSError. `n_unsure` of the rows just handed over may be lost when the next one is refused.
    """

    def __init__(
        self,
        name: str,
        write: Callable[..., None],
        reopen: Callable[[], None],
        close: Callable[[], None],
        *,
        n_unsure: int = 0,
    ) -> None:
        self._name, self._n_unsure = name, n_unsure
        self._write, self._reopen, self._close = write, reopen, close
        self._rows: deque[Row] = deque()
        self._n_handed_over = 0
        self._is_broken = self._has_warned = False

    def add(self, row: Row) -> None:
        """Write a row after those that wait, or let it wait with them."""
        self._rows.append(row)
        self._hand_over()

    def sync(self, sync: Callable[[], None]) -> None:
        """Write the waiting rows, and call `sync` to wait for the disk, unless it refuses them."""
        self._hand_over()
        if not self._is_broken:
            with self._refusals():
                sync()

    def close(self) -> None:
        """Write the waiting rows and close the file, or warn that they are lost."""
        for _ in range(2):
            self._hand_over()
            if not self._is_broken:
                with self._refusals():
                    self._close()
                    return
        warn_user(
            f"{self._name} may lack its last {len(self._rows)} rows, which could not be written.",
            RuntimeWarning,
        )

    def _hand_over(self) -> None:
        with self._refusals():
            if self._is_broken:
                self._reopen()
                self._is_broken, self._n_handed_over = False, 0
            while self._n_handed_over < len(self._rows):
                self._write(*self._rows[self._n_handed_over])
                self._n_handed_over += 1
                if self._n_handed_over > self._n_unsure:
                    self._rows.popleft()
                    self._n_handed_over -= 1
                    self._has_warned = False

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._is_broken = True
            if not self._has_warned:
                self._has_warned = True
                warn_user(
                    f"{self._name} was not written: {error}. Its rows wait in memory until they "
                    "can be written.",
                    RuntimeWarning,
                )


class _Board(TensorBoardOutputFormat):
    """TensorBoard's files; a new one begins after the disk refused the last."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._waiting = _Waiting(
            f"TensorBoard's log in {folder}",
            super().write,
            self._reopen,
            super().close,
            n_unsure=1,  # a thread writes them, and reports a refusal at the next row
        )

    def _reopen(self) -> None:
        # A thread that fails on a full disk prints its traceback and leaves an empty file.
        with tempfile.TemporaryFile(dir=self.writer.log_dir) as file:
            file.write(bytes(2**16))
        self.begin_file()

    def begin_file(self, purge_step: int | None = None) -> None:
        """Begin a new file, which hides what earlier files say from `purge_step` on."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self.writer.log_dir
        with contextlib.suppress(OSError):
            self.writer.close()
        self.writer = SummaryWriter(folder, purge_step=purge_step)

    def write(self, key_values: dict[str, Any], key_excluded: Excluded, step: int = 0) -> None:
        self._waiting.add((dict(key_values), dict(key_excluded), step))

    def close(self) -> None:
        self._waiting.close()


class CSVFormat(KVWriter):
    """Write the logger's numbers and text to a CSV file whose first column is the step.

    A file that exists keeps its rows up to `last_step`, where the run continues.
    """

    def __init__(self, path: Path, last_step: int) -> None:
        self._path = path
        self._log = CSVLog(path, last_step)
        self._last_step = last_step
        self._waiting = _Waiting(
            str(path), self._append, self._reopen, close=lambda: self._log.close()
        )

    def write(self, key_values: dict[str, Any], key_excluded: Excluded, step: int = 0) -> None:
        """Add a row of the numbers and texts, or let it wait for room on the disk."""
        numbers = {
            name: value
            for name, value in sorted(key_values.items())
            if "csv" not in (key_excluded.get(name) or ()) and _is_plain(value)
        }
        if numbers:
            self._waiting.add((numbers, {}, step))

    def sync(self) -> None:
        """Wait until all rows are on the disk, except those that it refuses."""
        self._waiting.sync(lambda: self._log.sync())  # `_log` may be a new one by then

    def _append(self, numbers: dict[str, Any], _: Any, step: int) -> None:
        self._log.append(step, numbers)
        self._last_step = step

    def _reopen(self) -> None:
        self._log.abandon()
        self._log = CSVLog(self._path, self._last_step)

    def close(self) -> None:
        """Write the waiting rows and close the file, or warn that they are lost."""
        self._waiting.close()


class EpisodeLogCallback(BaseCallback):
    """Write the step, length and return of every episode that ends to a CSV file.

    A training that continues from a checkpoint drops the later rows of the file. Returns are
    what the environments' `Monitor` reports: for Atari, those of whole games, unclipped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._table: CSVFormat | None = None

    def open(self, last_step: int) -> None:
        """Open the file at the step where the run continues; call it before training."""
        self._table = CSVFormat(self.path, last_step)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            episode = info.get("episode")
            if episode is not None and self._table is not None:
                numbers = {"return": float(episode["r"]), "length": int(episode["l"])}
                self._table.write(numbers, {}, self.num_timesteps)
        return True

    def sync(self) -> None:
        """Wait until all episodes so far are on the disk."""
        if self._table is not None:
            self._table.sync()

    def close(self) -> None:
        """Write the rows that wait and close the file; call it also after a failed training."""
        if self._table is not None:
            self._table.close()
            self._table = None


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "__float__")
