"""A run's logs: in the terminal, in TensorBoard and as CSV, without a second start's scars."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import (
    HumanOutputFormat,
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
)

from rl_infonce.runs.csv_log import CSVLog

__all__ = ["run_logger"]


def run_logger(
    run_dir: Path, tb_dir: Path, *, first_step: int, goes_on: bool, on_screen: bool
) -> Logger:
    """Return a logger that goes on after a step, and forgets what was logged beyond it.

    Args:
        run_dir: `progress.csv` is there.
        tb_dir: Of TensorBoard's files.
        first_step: Where training begins.
        goes_on: Whether there may be logs of the run already.
        on_screen: Whether to print tables.
    """
    board = TensorBoardOutputFormat(str(tb_dir))
    if goes_on:
        from torch.utils.tensorboard import SummaryWriter

        board.writer.close()
        board.writer = SummaryWriter(str(tb_dir), purge_step=first_step + 1)
    formats: list[KVWriter] = [board, _CSV(CSVLog(run_dir / "progress.csv", first_step))]
    if on_screen:
        formats.append(HumanOutputFormat(sys.stdout))
    return Logger(str(tb_dir), formats)


class _CSV(KVWriter):
    """What the terminal may show, in a file."""

    def __init__(self, log: CSVLog) -> None:
        self._log = log

    def write(
        self,
        key_values: dict[str, Any],
        key_excluded: dict[str, tuple[str, ...]],
        step: int = 0,
    ) -> None:
        numbers = {
            name: value
            for name, value in sorted(key_values.items())
            if "csv" not in (key_excluded.get(name) or ()) and _is_plain(value)
        }
        if numbers:
            self._log.append(step, numbers)

    def close(self) -> None:
        self._log.close()


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "__float__")
