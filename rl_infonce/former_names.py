"""Settings as earlier versions spelled them, and how they are spelled now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMER_SETTINGS = {"encoder": "pretrained"}
"""Settings of a training by their former names, with the present ones."""

FORMER_PRESETS = {"stdim": "spatial_cpc", "positional_dim": "positional_cpc"}
"""Presets by their former names, with the present ones; `pretraining` has objectives of those."""


def with_present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their present names.

    A former name beside the present one stays, so that it is refused as unknown.
    """
    present: dict[str, Any] = {}
    for name, value in settings.items():
        new = FORMER_SETTINGS.get(name, name)
        present[name if new in settings else new] = value
    preset = present.get("preset")
    if isinstance(preset, str) and preset in FORMER_PRESETS:
        present["preset"] = FORMER_PRESETS[preset]
    return present
