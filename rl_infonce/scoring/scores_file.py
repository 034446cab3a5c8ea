"""`scores.json`: every finished probe of a folder, readable at every moment, and continued."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_infonce.files.durable import replace_text
from rl_infonce.files.json_text import is_finite, read_json
from rl_infonce.scoring.scores_page import scores_table

FORMAT_VERSION = 1
_MOST_BYTES = 2**26
_KINDS: dict[str, type] = {"settings": dict, "encoders": dict, "runs": list, "cells": list}


class ProbeKey(NamedTuple):
    """One probe: the encoder (by its key), the game, the seed and the protocol."""

    game: str
    encoder: str
    seed: int
    protocol: str


class ScoresFile:
    """The scores in a folder, which is made if it is not there.

    All scores of a folder share their settings; a folder with scores of other settings is refused.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "scores.json"
        self.table_path = folder / "scores.md"
        self.content: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "settings": dict(settings),
            "encoders": {},
            "runs": [],
            "cells": [],
        }
        if self.path.exists():
            self.content = _read(self.path, settings)
        self.write()

    def write(self) -> None:
        """Replace the file in one move."""
        replace_text(self.path, json.dumps(self.content, indent=1) + "\n")

    def replace_encoder(self, key: str, described: Mapping[str, Any]) -> bool:
        """Note what a key stands for, and drop the scores of what its file held before.

        Return whether there were any.
        """
        encoders = self.content["encoders"]
        stale = [
            other
            for other, entry in encoders.items()
            if other != key
            and (entry["kind"], entry["name"]) == ("file", described["name"])
            and entry.get("place") == described.get("place")
        ]
        for other in stale:
            del encoders[other]
        self.content["cells"] = [
            entry for entry in self.content["cells"] if entry["encoder"] not in stale
        ]
        encoders[key] = dict(described)
        return bool(stale)

    def drop_stale(self, game: str, **present: str | int) -> bool:
        """Drop a game's scores of another origin, and return whether there were any.

        `present` is today's `labels_hash`, `frames_hash` or `penalty_patience`; scores without one
        stay.
        """
        kept = [
            entry
            for entry in self.content["cells"]
            if entry["game"] != game
            or all(entry.get(name) in (None, value) for name, value in present.items())
        ]
        dropped = len(kept) < len(self.content["cells"])
        self.content["cells"] = kept
        return dropped

    def done(self, probe: ProbeKey) -> bool:
        """Return whether this probe has scores."""
        return any(_is_of(entry, probe) for entry in self.scored())

    def put(self, probe: ProbeKey, **entry: Any) -> None:
        """Keep the outcome of a probe, in place of what an earlier try left, and write."""
        others = [each for each in self.content["cells"] if not _is_of(each, probe)]
        own = {**probe._asdict(), "run": len(self.content["runs"]) - 1, **entry}
        order = ("game", "protocol", "seed")
        self.content["cells"] = sorted([*others, own], key=lambda e: [e[name] for name in order])
        self.write()

    def scored(self) -> Iterable[dict[str, Any]]:
        """Return the entries that have scores."""
        return [entry for entry in self.content["cells"] if entry["status"] == "done"]


def _is_of(entry: Mapping[str, Any], probe: ProbeKey) -> bool:
    return all(entry[name] == value for name, value in probe._asdict().items())


def read_scores(path: Path) -> dict[str, Any]:
    """Return the content of a file of scores."""
    try:
        content = read_json(path, most_bytes=_MOST_BYTES, allow_nan=True)
        version = content["format_version"]
        if version == FORMAT_VERSION:
            _check(content)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"Expected {path} to hold scores of `rl-infonce probe`, got {error!r}."
        ) from error
    if version != FORMAT_VERSION:
        raise ValueError(f"Expected {path} in format {FORMAT_VERSION}, got {version!r}.")
    return dict(content)


def _read(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        content = read_scores(path)
    except ValueError as error:
        raise ValueError(f"{error} Choose another --output.") from error
    stored = content["settings"]
    for name in sorted(settings.keys() | stored.keys()):
        if settings.get(name) != stored.get(name):
            raise ValueError(
                f"Expected the same settings as the scores in {path}, got {name}="
                f"{settings.get(name)!r} instead of {stored.get(name)!r}. Pass those, or choose "
                "another --output."
            )
    return dict(content)


def _check(content: dict[str, Any]) -> None:
    """Raise an error of any kind unless scores can be continued and shown."""
    for key, kind in _KINDS.items():
        if type(content[key]) is not kind:
            raise TypeError(f"`{key}` of type {type(content[key]).__name__}")
    for entry in content["cells"]:
        probe = ProbeKey(*(entry[name] for name in ProbeKey._fields))
        if list(map(type, probe)) != [str, str, int, str] or type(entry["status"]) is not str:
            raise TypeError(f"the probe {probe}")
        if probe.encoder not in content["encoders"]:
            raise KeyError(probe.encoder)
        if entry["status"] == "done":
            _check_scores(entry["scores"])
    scores_table(content)  # which reads every entry that is ever read


def _check_scores(scores: Mapping[str, Any]) -> None:
    """Raise an error of any kind unless each F1, or error in pixels of a ridge, is a number."""
    means = [scores["mean"]] if "mean" in scores else []
    categories = scores.get("categories", {}).values()
    for score in (*means, *categories, *scores["variables"].values()):
        for name in ("f1_weighted", "median_absolute_error"):
            if not is_finite(score.get(name, 0.0)):
                raise ValueError(f"{name} of {score[name]!r}")
