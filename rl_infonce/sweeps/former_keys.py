"""Keys of a grid that had another name in earlier versions, taken for the present ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_infonce.runs.run_directory import FORMER_NAMES


def with_present_keys(content: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a grid with present keys in its tables of settings, and the former ones in it.

    A former key beside the present one stays, so that it is refused as unknown.

    Args:
        content: As of `make_grid`; what is no table stays as it is.
    """
    found: set[str] = set()

    def present(table: Any) -> Any:
        if not isinstance(table, Mapping):
            return table
        former = {
            name for name in table if name in FORMER_NAMES and FORMER_NAMES[name] not in table
        }
        found.update(former)
        return {FORMER_NAMES[k] if k in former else k: value for k, value in table.items()}

    grid = dict(content)
    if "train" in grid:
        grid["train"] = present(grid["train"])
    if isinstance(grid.get("arm"), Mapping):
        grid["arm"] = {name: present(table) for name, table in grid["arm"].items()}
    if isinstance(grid.get("study"), Mapping) and "search" in grid["study"]:
        grid["study"] = {**grid["study"], "search": present(grid["study"]["search"])}
    return grid, tuple(sorted(found))
