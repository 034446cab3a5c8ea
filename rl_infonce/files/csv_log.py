"""A growing table of numbers by step, whose run may be interrupted and continued."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from rl_infonce.files.durable import replace_bytes, sync

STEP = "step"
_IS_STEP = re.compile("[0-9]{1,18}")
_MOST_BYTES = 2**28


class CSVLog:
    """Append rows to a CSV file whose first column is the step.

    A file that exists keeps its rows up to `last_step`, where the run continues, without a torn
    last line.
    """

    def __init__(self, path: Path, last_step: int) -> None:
        self._path = path
        self._columns = [STEP]
        kept = [row for row in read_rows(path, is_torn=True) if int(row[STEP]) <= last_step]
        if kept:
            self._columns = list(kept[0])
        self._file = self._begin(kept)

    def append(self, step: int, numbers: Mapping[str, float | str]) -> None:
        """Add a row; a number with a new name adds a column."""
        row = {STEP: str(step), **{name: str(value) for name, value in numbers.items()}}
        new = [name for name in row if name not in self._columns]
        if new:
            self._file.close()
            rows = list(read_rows(self._path, is_torn=True))
            self._columns += new
            self._file = self._begin([*rows, row])
        else:
            _writer(self._file, self._columns).writerow(row)
            self._file.flush()
            self._n_bytes = self._path.stat().st_size

    def sync(self) -> None:
        """Wait until all rows are on the disk, as a checkpoint will assume."""
        if not self._file.closed:
            sync(self._file)

    def abandon(self) -> None:
        """Close the file without what the disk has refused, of which closing may write a part."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.truncate(self._path, self._n_bytes)

    def close(self) -> None:
        """Close the file, also after an error, and wait until it is on the disk."""
        try:
            self.sync()
        finally:
            self._file.close()

    def _begin(self, rows: Iterable[Mapping[str, str]]) -> TextIO:
        """Write the file anew in one move, and return it open at its end."""
        text = io.StringIO(newline="")
        writer = _writer(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        content = text.getvalue().encode()
        replace_bytes(self._path, content)
        self._n_bytes = len(content)
        return self._path.open("a", newline="", encoding="utf-8")


def _writer(file: TextIO | io.StringIO, columns: list[str]) -> csv.DictWriter[str]:
    return csv.DictWriter(file, columns, restval="", lineterminator="\n")


def read_rows(path: Path, *, is_torn: bool = False) -> Iterator[dict[str, str]]:
    """Yield the rows of a table, none if there is no such file.

    Of a table that is torn, whose writer may have been killed, these are the whole ones.
    """
    if not path.is_file():  # opening a pipe would wait for its writer
        return
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path.stat().st_size:,} bytes")
        text = path.read_bytes().decode("utf-8")
        if is_torn:  # nothing but the end of its line shows that a number is whole
            text = text[: text.rfind("\n") + 1]
        rows = csv.DictReader(io.StringIO(text, newline=""))
        if STEP not in (rows.fieldnames or ()) and (text or not is_torn):
            raise ValueError(f"the columns {text.partition(chr(10))[0][:80]!r}")
        yield from (row for row in rows if not is_torn or _is_whole(row))
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"Expected numbers by step in {path}, as CSV, got: {error}. Move that file away."
        ) from error


def _is_whole(row: Mapping[str | None, str | None]) -> bool:
    step = row.get(STEP) or ""
    return None not in row and None not in row.values() and _IS_STEP.fullmatch(step) is not None
