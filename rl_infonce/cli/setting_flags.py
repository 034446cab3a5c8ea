"""Flags of declared settings: `n_pairs` is --n-pairs, with the kind and meaning that it has."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any

from rl_infonce.hyperparameters import flag, flag_words
from rl_infonce.kinds import Choice, Choices, Count, Flag, Kind
from rl_infonce.presets import other_presets
from rl_infonce.settings import (
    ENCODER_SETTINGS,
    DecoupledSettings,
    Horizons,
    InfoNCESettings,
    Setting,
    declared,
    defaults,
)


def groups_of(settings: Mapping[str, Setting]) -> dict[str, dict[str, Setting]]:
    """Return the settings of the loss by what they belong to, in words for a help text."""
    needing = {name for name, each in settings.items() if each.needs == ("isolated", True)}
    members = {
        "an encoder that the loss alone trains, as vectors have it": {"isolated", *needing},
        "the encoder of images": {"encoder", *ENCODER_SETTINGS},
        "updates of the loss after those of RL, for images": set(declared(DecoupledSettings)),
    }
    loss = set(settings).difference(*members.values())
    usual = "what is not given comes from the preset: cpc of images, action_cpc of vectors"
    return {
        title: {name: each for name, each in settings.items() if name in names}
        for title, names in {f"the loss ({usual})": loss, **members}.items()
    }


def add_settings(add: Callable[..., argparse.Action], settings: Mapping[str, Setting]) -> None:
    """Add a flag for each declared setting; what is not given is None."""
    for name, setting in settings.items():
        choices = setting.kind.words if isinstance(setting.kind, Choice | Choices) else ""
        help_text = f"{setting.meaning} ({choices})" if choices else setting.meaning
        if setting.needs is not None:
            other, value = setting.needs
            help_text = f"{help_text} Needs {' '.join(flag_words({other: value}))}."
        if setting.none:
            help_text = f"{help_text} Without it: {setting.none.replace('`', '')}."
        help_text += _presets_words(name)
        add(flag(name), **_parsing(setting.kind), help=help_text)


def _presets_words(name: str) -> str:
    """Return the value of a setting in the usual preset, and which presets have another."""
    usual = defaults(InfoNCESettings).get(name)
    values = [] if usual is None else [str(usual)]
    values += filter(None, [other_presets(name)])
    words = re.sub(r",?\)|[(`']", "", "; ".join(values))  # a list without the marks of Python's
    return f" ({words})" if values else ""


def _parsing(kind: Kind) -> dict[str, Any]:
    match kind:
        case Flag():
            return {"action": argparse.BooleanOptionalAction}
        case Count():
            return {"type": int, "metavar": "N"}
        case Horizons():
            return {"type": int, "nargs": "+", "metavar": "K"}
        case Choices():
            return {"nargs": "+", "metavar": "NAME"}
        case Choice():
            return {"metavar": "NAME"}
    return {"type": float, "metavar": "X"}
