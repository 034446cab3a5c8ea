"""The cells of a sweep in a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_infonce.sweeps.progress import CellState

_MOST_ROWS = 16


def counts(states: Mapping[str, CellState]) -> str:
    """Return how many cells stand where, in words."""
    found = Counter(state.status for state in states.values())
    order = ("done", "trained", "begun", "failed", "missing")
    return ", ".join(f"{found[status]} {status}" for status in order if found[status])


def live_table(states: Mapping[str, CellState], n_timesteps: int) -> Group:
    """Return the cells that train, as far as they have come, and the counts of all."""
    table = Table(box=None, pad_edge=False)
    for title in ("cell", "", "steps"):
        table.add_column(title, justify="right" if title == "steps" else "left")
    begun = [(name, state) for name, state in states.items() if state.status == "begun"]
    for name, state in begun[:_MOST_ROWS]:
        bar = ProgressBar(total=n_timesteps, completed=state.step, width=30)
        table.add_row(name, bar, f"{state.step:,} of {n_timesteps:,}")
    more = len(begun) - _MOST_ROWS
    rest = [Text(f"... and {more} more")] if more > 0 else []
    return Group(table, *rest, Text(f"{len(states)} cells: {counts(states)}"))
