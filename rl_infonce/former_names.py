"""Settings as earlier versions spelled them, and how they are spelled now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMER_SETTINGS = {"encoder": "pretrained"}
"""Settings of a training by their former names, with the present ones."""

FORMER_PRESETS = {"stdim": "spatial_cpc", "positional_dim": "positional_cpc"}
"""Presets by their former names, with the present ones; `pretraining` has objectives of those."""


FORMER_ARGUMENTS = {"image_key": "observation_key"}
"""Arguments of the extractor by their former names, with the present ones."""


def with_present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their present names.

    A former name beside the present one stays, so that it is refused as unknown.
    """
    present: dict[str, Any] = {}
    for name, value in settings.items():
        new = FORMER_SETTINGS.get(name, name)
        present[name if new in settings else new] = value
    if "preset" in present:
        present["preset"] = _present_preset(present["preset"])
    return present


def _present_preset(preset: Any) -> Any:
    """Return a preset, or choices of a study's presets, by their present names."""
    if isinstance(preset, str):
        return FORMER_PRESETS.get(preset, preset)
    if isinstance(preset, Mapping) and isinstance(preset.get("choices"), list):
        return {**preset, "choices": [_present_preset(each) for each in preset["choices"]]}
    return preset
