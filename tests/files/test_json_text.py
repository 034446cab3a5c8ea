"""JSON from anyone is what Python reads, or is refused before it costs memory."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_infonce.files.json_text import parse_json, read_json

TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


@settings(deadline=None, derandomize=True)
@given(TREES)
def test_what_is_written_is_read(tree: Any) -> None:
    assert parse_json(json.dumps(tree), allow_nan=True) == tree
    assert parse_json(json.dumps(tree, ensure_ascii=False).encode(), allow_nan=True) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("[1", "Expecting"),
        ("1 1", "Extra data"),
        (b"\xff", "utf-8"),
        ("[1]".encode("utf-16"), "utf-8"),
        ("9" * 5000, "digits"),
        ("NaN", "finite numbers, got NaN"),
        ("[1, -Infinity]", "finite numbers, got -Infinity"),
        ("1e400", "finite numbers, got 1e400"),
        ("[" * 101 + "]" * 101, "at most 100 levels"),
        ('{"a":' * 101 + "1" + "}" * 101, "at most 100 levels"),
        ("[" * 100_000 + "]" * 100_000, "at most 100 levels"),
        ("[" + "[]," * 600_000 + "[]]", "at most 1,048,576 values of JSON, got 1,200,002"),
        (" " * (2**24 + 1), "at most 16,777,216 bytes of JSON, got 16,777,217 bytes"),
    ],
)
def test_what_is_none_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_the_deepest_and_infinity_where_asked() -> None:
    assert parse_json("[" * 100 + "]" * 100)
    assert parse_json("[1e400, -Infinity]", allow_nan=True) == [float("inf"), -float("inf")]


def test_a_file_is_measured_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1, 2]")
    assert read_json(path) == [1, 2]
    with path.open("r+b") as file:
        file.truncate(2**40)  # sparse
    with pytest.raises(ValueError, match="at most 67,108,864 bytes of JSON, got 1,099,511,627,776"):
        read_json(path, most_bytes=2**26)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "loop", "missing", "."):
        with pytest.raises(FileNotFoundError, match=r"Expected a file at .*, got none"):
            read_json(tmp_path / name)
