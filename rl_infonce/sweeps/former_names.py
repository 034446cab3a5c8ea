"""Grids and records in the words of earlier versions, read in the words of this one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from rl_infonce.settings import FORMER_PRESETS


def with_current_names(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a grid's content whose settings have the names of now, with one warning for each.

    Arms keep the names that they were given, as folders are called after them.

    Args:
        content: Tables and lists of a grid, legal or not.
    """
    current = dict(content)
    if isinstance(current.get("train"), Mapping):
        current["train"] = _current(current["train"], "train")
    if isinstance(current.get("arm"), Mapping):
        current["arm"] = {
            name: _current(table, f"arm.{name}") if isinstance(table, Mapping) else table
            for name, table in current["arm"].items()
        }
    own = current["arm"] if isinstance(current.get("arm"), Mapping) else {}
    for name in current["arms"] if isinstance(current.get("arms"), list) else ():
        if isinstance(name, str) and name in FORMER_PRESETS and name not in own:
            _warn(f"the arm {name!r}", repr(FORMER_PRESETS[name]))
    return current


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a record, which any version may have written, in the names of now."""
    preset = settings.get("preset")
    if isinstance(preset, str) and preset in FORMER_PRESETS:
        return {**settings, "preset": FORMER_PRESETS[preset]}
    return dict(settings)


def _current(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    current = current_settings(table)
    if current.get("preset") != table.get("preset"):
        _warn(f"{where}.preset {table['preset']!r}", repr(current["preset"]))
    return current


def _warn(old: str, new: str) -> None:
    message = f"In grids {old} is called {new} now. The former name still works."
    warnings.warn(message, FutureWarning, stacklevel=4)
