"""The trials of a search for settings, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rl_infonce.report.table import Table

HOW_CHOSEN = (
    "Each trial was an arm on the whole grid, and its value is the {}. The best stands "
    "first. The value of the best of many is too good: train its "
    "settings again beside the baseline, on seeds that did not choose them."
)


class Trial(NamedTuple):
    """A trial: its name, how far it has come, its settings, and its value once it has one."""

    name: str
    state: str
    settings: Mapping[str, Any]
    value: float | None


class Search(NamedTuple):
    """The trials of a search, and what their value is, in words."""

    trials: Sequence[Trial]
    value: str


def trials_table(trials: Sequence[Trial]) -> Table:
    """Return the trials with a value, best first, then the others in their order."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.settings))
    valued = sorted(
        (trial for trial in trials if trial.value is not None),
        key=lambda trial: trial.value or 0.0,
        reverse=True,
    )
    others = [trial for trial in trials if trial.value is None]
    rows = [
        [
            trial.name,
            trial.state if trial.value is None else f"{trial.value:.4g}",
            *(_shown(trial.settings.get(name)) for name in names),
        ]
        for trial in [*valued, *others]
    ]
    return Table(["trial", "value", *names], rows, [])


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
