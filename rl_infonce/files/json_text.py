"""Read JSON by anyone, with bounds on bytes, values and levels before it fills the memory."""

from __future__ import annotations

import itertools
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

_MOST_BYTES = 2**24
_BYTES_PER_VALUE = 16
MOST_LEVELS = 100
"""Lists and objects in one another that `parse_json` reads."""


def read_json(path: Path, *, most_bytes: int = _MOST_BYTES, allow_nan: bool = False) -> Any:
    """Return the content of a JSON file; see `parse_json`, whose errors do not name the file."""
    if not path.is_file():  # opening a pipe would wait for its writer
        raise FileNotFoundError(f"Expected a file at {path}, got none.")
    _check_size(path.stat().st_size, most_bytes)
    with path.open("rb") as file:
        return parse_json(file.read(most_bytes + 1), most_bytes=most_bytes, allow_nan=allow_nan)


def packaged_json(package: str, name: str) -> Any:
    """Return the content of a JSON file of this library."""
    return json.loads(resources.files(package).joinpath(name).read_text("utf-8"))


def parse_json(
    content: bytes | str, *, most_bytes: int = _MOST_BYTES, allow_nan: bool = False
) -> Any:
    """Return the content of JSON text, or raise ValueError.

    An empty list takes two bytes of text and 64 of memory, so values are also counted: at most
    a sixteenth of `most_bytes`. Levels are few enough for any walk through the tree to recurse.
    `allow_nan` lets NaN and infinity pass, which Python writes although JSON has no such
    numbers.
    """
    check_json_size(content, most_bytes=most_bytes)
    text = _decoded(content) if isinstance(content, bytes) else content
    try:
        value = json.loads(text, **({} if allow_nan else _FINITE))
        is_shallow = has_few_levels(value)
    except RecursionError:
        is_shallow = False
    if not is_shallow:
        raise ValueError(f"Expected at most {MOST_LEVELS} levels of JSON, got more.")
    return value


def check_json_size(content: bytes | str, *, most_bytes: int) -> None:
    """Raise unless `parse_json` would read that many bytes and values."""
    _check_size(len(content), most_bytes)
    if isinstance(content, bytes):
        n_values = sum(content.count(mark) for mark in (b"[", b"{", b","))
    else:
        n_values = sum(content.count(mark) for mark in "[{,")
    most = most_bytes // _BYTES_PER_VALUE
    if n_values > most:
        raise ValueError(f"Expected at most {most:,} values of JSON, got {n_values:,}.")


def has_few_levels(value: Any) -> bool:
    """Return whether lists and dictionaries are nested so little that `parse_json` reads them."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return True
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = list(itertools.chain.from_iterable(inner))
    return False


def is_finite(value: Any) -> bool:
    """Return whether a JSON value is a number that a float can hold."""
    if type(value) not in (int, float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer may have any size
        return False


def none_if_nan(figure: float) -> float | None:
    """Return a number as JSON can hold it, which has no NaN."""
    return None if math.isnan(figure) else figure


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:  # the error's repr holds all the bytes
        raise ValueError(f"Expected JSON in UTF-8, got: {error}") from None


def _check_size(n_bytes: int, most: int) -> None:
    if n_bytes > most:
        raise ValueError(f"Expected at most {most:,} bytes of JSON, got {n_bytes:,} bytes.")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"Expected JSON with finite numbers, got {number[:50]}.")
    return value


_FINITE: dict[str, Any] = {"parse_constant": _finite, "parse_float": _finite}
