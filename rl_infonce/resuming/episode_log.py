"""Every finished episode of a training, as a table."""

from __future__ import annotations

from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.resuming.run_logs import CSVFormat


class EpisodeLogCallback(BaseCallback):
    """Write the return and length of every episode, when it ends, to a CSV file.

    A training that goes on from a checkpoint forgets what the file says beyond it. Returns are what
    the environments' `Monitor` reports: of Atari whole games and unclipped.

    Args:
        path: Of the file; its columns are step, length and return.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._table: CSVFormat | None = None

    def open(self, last_step: int) -> None:
        """Open the file where the run goes on; training does so, too, if nobody has.

        Raises:
            ValueError: If the file is no such table.
            OSError: If it cannot be written now.
        """
        self._table = CSVFormat(self.path, last_step)

    def _on_training_start(self) -> None:
        if self._table is None:
            self.open(self.num_timesteps)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            episode = info.get("episode")
            if episode is not None and self._table is not None:
                numbers = {"return": float(episode["r"]), "length": int(episode["l"])}
                self._table.write(numbers, {}, self.num_timesteps)
        return True

    def sync(self) -> None:
        """Wait until the disk has all episodes so far."""
        if self._table is not None:
            self._table.sync()

    def close(self) -> None:
        """Write what waits and close the file; a training that failed must be closed, too."""
        if self._table is not None:
            self._table.close()
            self._table = None

    def _on_training_end(self) -> None:
        self.close()
