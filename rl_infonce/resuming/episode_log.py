"""Every finished episode of a training, as a table."""

from __future__ import annotations

from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.resuming.run_logs import CSVFormat


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
        """Open the file at the step where the run continues; otherwise training opens it."""
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
        """Wait until all episodes so far are on the disk."""
        if self._table is not None:
            self._table.sync()

    def close(self) -> None:
        """Write the rows that wait and close the file; call it also after a failed training."""
        if self._table is not None:
            self._table.close()
            self._table = None

    def _on_training_end(self) -> None:
        self.close()
