"""Name the scores of a probe in the logger and lay them out in TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_infonce.probing import ProbeScores

_INTERVAL = ("f1_mean_low", "f1_mean_high")
_ON_SCREEN = ("f1_", "untrained_f1_mean", "majority_f1_mean")


def section_of(protocol: str) -> str:
    """Return the first part of a protocol's tags: "probe" for the converged protocol."""
    return "probe" if protocol == "converged" else f"probe_{protocol}"


def probe_scalars(
    scores: ProbeScores, untrained: ProbeScores, majority: ProbeScores
) -> dict[str, float]:
    """Return the numbers by tag; F1 is the weighted one, and all scores have one protocol.

    The interval of the mean is missing where one test game gives none.
    """
    section = section_of(scores.protocol)
    numbers = {f"{section}/accuracy_mean": scores.mean.accuracy}
    for prefix, each in (("", scores), ("untrained_", untrained), ("majority_", majority)):
        numbers[f"{section}/{prefix}f1_mean"] = each.mean.f1_weighted
        for category, score in each.categories.items():
            numbers[f"{section}/{prefix}f1_{category}"] = score.f1_weighted
    bounds = zip(_INTERVAL, scores.intervals["mean"], strict=True)
    numbers |= {f"{section}/{name}": bound for name, bound in bounds if not math.isnan(bound)}
    for variable, score in scores.variables.items():
        numbers[f"{section}_variables/{variable}"] = score.f1_weighted
    return numbers


def on_screen(tag: str) -> bool:
    """Return whether the terminal also shows the number with this tag."""
    section, name = tag.split("/", 1)
    return name.startswith(_ON_SCREEN) and name not in _INTERVAL and "_variables" not in section


def chart_layout(
    protocols: Sequence[str], categories: Sequence[str]
) -> dict[str, Mapping[str, list[str]]]:
    """Return tags by chart by page section: F1 with its two reference lines."""
    return {
        section_of(protocol): {
            f"F1 {name}": [
                f"{section_of(protocol)}/{prefix}f1_{name}"
                for prefix in ("", "untrained_", "majority_")
            ]
            for name in ("mean", *categories)
        }
        for protocol in protocols
    }
