"""Write and read the results of an evaluation as a JSON file."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rl_infonce.files.json_text import is_finite, read_json

FORMAT = "rl_infonce evaluation"
FORMAT_VERSION = 1


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error, which is None for a single value."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return fmean(values), error


def evaluation_record(
    game: str, episodes: Sequence[Mapping[str, Any]], **about: Any
) -> dict[str, Any]:
    """Return the content of the file.

    Each episode has its "return" in points, "length" in agent steps, and "is_cut".
    """
    mean, error = mean_and_error([episode["return"] for episode in episodes])
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "game": game,
        "mean_return": mean,
        "standard_error": error,
        "mean_length": fmean(episode["length"] for episode in episodes),
        "n_cut": sum(episode["is_cut"] for episode in episodes),
        "episodes": [dict(episode) for episode in episodes],
        **about,
    }


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return the results of an evaluation; mean and standard error are those of its episodes."""
    try:
        record = dict(read_json(path))
        if (record["format"], record["format_version"]) != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"format {record['format_version']!r} of {record['format']!r}")
        about = {name: record[name] for name in ("settings", "versions")}
        if not all(isinstance(each, dict) for each in about.values()):
            raise TypeError("settings or versions that are not an object")
        if not isinstance(record["game"], str):
            raise TypeError("a game that is not a name")
        return record | evaluation_record(record["game"], _episodes(record["episodes"]), **about)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"Expected {path} to be written by `rl-infonce evaluate --output`, got: {error!r}."
        ) from error


def check_output(path: Path) -> None:
    """Raise unless an evaluation can be written to a path, perhaps over another evaluation."""
    if path.is_dir():
        raise IsADirectoryError(
            f"Expected `--output` to be a file, got the folder {path}. Name a file in it."
        )
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"Expected a folder for {path}, got none there.")
    if path.exists():
        try:
            read_evaluation(path)
        except ValueError as error:
            raise ValueError(f"{error} `--output` does not replace it; name another.") from error
    try_to_write_beside(path)


def try_to_write_beside(path: Path) -> None:
    """Raise an OSError if no file can be made in the folder of a path."""
    folder = path.absolute().parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"Expected a folder that can be written for {path.name}, got {folder}: "
            f"{error.strerror}. Name another."
        ) from error


def _episodes(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not found:
        raise TypeError("no episodes")
    episodes = []
    for episode in found:
        value, length, is_cut = (episode[name] for name in ("return", "length", "is_cut"))
        if not (is_finite(value) and type(length) is int and type(is_cut) is bool):
            raise TypeError(f"an episode {episode!r}")
        episodes.append({"return": float(value), "length": length, "is_cut": is_cut})
    return episodes
