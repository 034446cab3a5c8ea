"""Search the study of a sweep, trial by trial, until it is done, stopped or hopeless."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import NamedTuple

from rl_infonce.atari.human_scores import human_scores
from rl_infonce.runs.signals import INTERRUPTED
from rl_infonce.sweeps.arms import Settings
from rl_infonce.sweeps.grid import Grid
from rl_infonce.sweeps.study import best_trial, run_study, value_in_words
from rl_infonce.sweeps.sweep_run import CellEnd, SweepRun

_FAILED_AT_FIRST = 3  # trials, after which the machine may be at fault and not their settings
Watch = Callable[[Generator[CellEnd, None, None], Grid], Mapping[str, int]]


class TrialEnd(NamedTuple):
    """A trial that ended, with what the study maximises and how far its cells have come.

    It has no cells if it ended as an earlier one with its settings did.
    """

    name: str
    settings: Settings
    value: float | None
    statuses: frozenset[str]


class StudyRun:
    """A search in the folder of a sweep.

    `watch` receives the cells of each trial as they end, with their grid, and returns their exit
    codes. `n_failed` counts trials that were trained and have no value; `is_stopped` says whether a
    signal stopped a cell, and `is_hopeless` whether the search stopped because the first trials all
    failed.
    """

    def __init__(self, sweep: SweepRun, watch: Watch) -> None:
        self._sweep, self._watch = sweep, watch
        scores = human_scores()
        self._scales = scores if set(sweep.grid.tasks) <= scores.keys() else None
        self.n_failed = 0
        self.is_stopped = self.is_hopeless = False

    @property
    def measure(self) -> str:
        """What the values of trials mean, in words."""
        return value_in_words(self._sweep.grid, self._scales)

    def trials(self) -> Iterator[TrialEnd]:
        """Yield trials as they end."""
        sweep, folder = self._sweep, self._sweep.folder
        statuses: dict[str, frozenset[str]] = {}

        def train(own: Grid) -> bool:
            codes = self._watch(sweep.train(own), own)
            self.is_stopped |= INTERRUPTED in codes.values()
            statuses[own.arms[0]] = frozenset(each.status for each in folder.states(own).values())
            return not self.is_stopped

        for name, settings, value in run_study(folder, sweep.grid, train, self._scales):
            yield TrialEnd(name, settings, value, statuses.get(name, frozenset()))
            self.n_failed += value is None and name in statuses
            if self.n_failed == _FAILED_AT_FIRST and self.best() is None:
                self.is_hopeless = True
                return

    def best(self) -> tuple[str, Settings, float] | None:
        """Return name, settings and value of the best trial of all sessions; None without one."""
        return best_trial(self._sweep.folder)

    @property
    def code(self) -> int:
        """Exit code of the search."""
        if self.is_stopped:
            return INTERRUPTED
        return int(self.n_failed > 0 or self.best() is None)
