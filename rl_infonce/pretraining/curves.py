"""TensorBoard curves of a pretraining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class PretrainingCurves:
    """Curves of all sessions: a former one may have been killed before it drew a point."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._n_drawn = folder, 0
        self._writer: SummaryWriter | None = None

    def draw(self, history: Sequence[Mapping[str, float | None]]) -> None:
        """Add the points that are new, to a file that hides those of former sessions."""
        from torch.utils.tensorboard import SummaryWriter

        if self._n_drawn == len(history):
            return
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder), purge_step=0)
        for entry in history[self._n_drawn :]:
            for key, value in entry.items():
                if key != "step" and value is not None:
                    self._writer.add_scalar(f"pretrain/{key}", value, entry["step"])
        self._writer.flush()  # whoever is killed has drawn all or nothing
        self._n_drawn = len(history)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._writer is not None:
            self._writer.close()
