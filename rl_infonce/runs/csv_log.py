"""A table of numbers by step that grows, also when its run is interrupted and goes on."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from rl_infonce.runs.durable import replace_bytes

__all__ = ["CSVLog"]

STEP = "step"


class CSVLog:
    """Appends rows to a CSV file whose first column is the step.

    Args:
        path: A file that is there keeps its rows up to `last_step`; a torn last line is dropped.
        last_step: Where the run goes on.

    Raises:
        OSError: If the file cannot be read or written.
    """

    def __init__(self, path: Path, last_step: int) -> None:
        self._path = path
        self._columns = [STEP]
        kept = [row for row in _rows(path) if int(row[STEP]) <= last_step]
        if kept:
            self._columns = list(kept[0])
        self._file = self._begin(kept)

    def append(self, step: int, numbers: Mapping[str, float | str]) -> None:
        """Add a row; a number that was not there before adds a column.

        Raises:
            OSError: If the file cannot be written.
        """
        row = {STEP: str(step), **{name: str(value) for name, value in numbers.items()}}
        new = [name for name in row if name not in self._columns]
        if new:
            self._file.close()
            rows = list(_rows(self._path))
            self._columns += new
            self._file = self._begin([*rows, row])
        else:
            _writer(self._file, self._columns).writerow(row)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _begin(self, rows: Iterable[Mapping[str, str]]) -> TextIO:
        """Write the file anew, in one move, and return it open at its end."""
        text = io.StringIO(newline="")
        writer = _writer(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        replace_bytes(self._path, text.getvalue().encode())
        return self._path.open("a", newline="", encoding="utf-8")


def _writer(file: TextIO | io.StringIO, columns: list[str]) -> csv.DictWriter[str]:
    return csv.DictWriter(file, columns, restval="", lineterminator="\n")


def _rows(path: Path) -> Iterable[dict[str, str]]:
    """Yield the whole rows of a file, none if there is no such file."""
    if not path.exists():
        return
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            is_whole = None not in row and None not in row.values()
            if is_whole and row.get(STEP, "").isdecimal():
                yield row
