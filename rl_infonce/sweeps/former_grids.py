"""Grids that are spelled as in earlier versions, taken for the present ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_infonce.former_names import FORMER_PRESETS, FORMER_SETTINGS, with_present_names


def with_present_spelling(content: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a grid with present names in its tables of settings, and what was respelled in words.

    Arms keep the names that they were given, as folders are called after them.

    Args:
        content: As of `make_grid`; what is no table stays as it is.
    """
    found: list[str] = []

    def present(table: Any) -> Any:
        if not isinstance(table, Mapping):
            return table
        found.extend(_respelled(table))
        return with_present_names(table)

    grid = dict(content)
    if "train" in grid:
        grid["train"] = present(grid["train"])
    if isinstance(grid.get("arm"), Mapping):
        grid["arm"] = {name: present(table) for name, table in grid["arm"].items()}
    if isinstance(grid.get("study"), Mapping) and "search" in grid["study"]:
        grid["study"] = {**grid["study"], "search": present(grid["study"]["search"])}
    own = grid["arm"] if isinstance(grid.get("arm"), Mapping) else {}
    for arm in grid["arms"] if isinstance(grid.get("arms"), list) else ():
        if isinstance(arm, str) and arm in FORMER_PRESETS and arm not in own:
            found.append(f"the arm `{arm}` of a grid is now called `{FORMER_PRESETS[arm]}`")
    return grid, tuple(dict.fromkeys(found))


def _respelled(table: Mapping[str, Any]) -> Iterator[str]:
    for name, new in FORMER_SETTINGS.items():
        if name in table and new not in table:
            yield f"the key `{name}` of a grid is now called `{new}`"
    preset = table.get("preset")
    if isinstance(preset, str) and preset in FORMER_PRESETS:
        yield f"the preset `{preset}` is now called `{FORMER_PRESETS[preset]}`"
