"""Read grids that are spelled as in earlier versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_infonce.former_names import FORMER_PRESETS, FORMER_SETTINGS, with_present_names


def with_present_spelling(content: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a grid with present names in its tables of settings, and what was respelled in words.

    Arms keep the names that they were given, as folders are called after them.
    """
    found: list[str] = []
    grid = {
        name: dict(each) if isinstance(each, Mapping) else each for name, each in content.items()
    }
    own = grid["arm"] if isinstance(grid.get("arm"), dict) else {}
    places = [(grid, "train"), *((own, arm) for arm in own), (grid.get("study"), "search")]
    for tables, name in places:
        if isinstance(tables, dict) and isinstance(tables.get(name), Mapping):
            found += _respelled(tables[name])
            tables[name] = with_present_names(tables[name])
    for arm in grid["arms"] if isinstance(grid.get("arms"), list) else ():
        if isinstance(arm, str) and arm in FORMER_PRESETS and arm not in own:
            found.append(f"the arm `{arm}` of a grid is now called `{FORMER_PRESETS[arm]}`")
    return grid, tuple(dict.fromkeys(found))


def _respelled(table: Mapping[str, Any]) -> Iterator[str]:
    for name, new in FORMER_SETTINGS.items():
        if name in table and new not in table:
            yield f"the key `{name}` of a grid is now called `{new}`"
    for preset in _presets(table.get("preset")):
        yield f"the preset `{preset}` is now called `{FORMER_PRESETS[preset]}`"


def _presets(given: Any) -> list[str]:
    """Return the former presets in a setting or, of a study, among its choices."""
    choices = given.get("choices") if isinstance(given, Mapping) else [given]
    listed = choices if isinstance(choices, list) else []
    return [each for each in listed if isinstance(each, str) and each in FORMER_PRESETS]
