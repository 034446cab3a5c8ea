"""A table as rows of text, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """Rows of text below a header of as many columns, with notes below the table."""

    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, its notes below."""
    return "\n\n".join([markdown_table(table.header, table.rows), *table.notes])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; bars within cells become slashes."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in lines)
