"""The index of experiments leads to every study, and says what the study's page says."""

import re
from typing import NamedTuple

import pytest

from tests.experiments.loading import EXPERIMENTS

INDEX = EXPERIMENTS / "README.md"
PAGES = sorted(EXPERIMENTS.rglob("*.md"))
PRINTED_BY_COMMANDS = {"report.md", "scores.md"}
LINK = re.compile(r"\]\(([^)]+)\)")
FIGURE = re.compile(r"(?<![\w.,-])[-+]?\d[\d.,]*(?:e-?\d+|x)?(?: \([-+\d., to]+\)| \+- [\d.]+)?")


class Entry(NamedTuple):
    page: str
    number: str
    command: str


def entries() -> list[Entry]:
    """Return the rows of the index's tables."""
    row = r"^\| \[.+\?\]\((.+)\) \| .+ \| (.+) \| `(.+)` \|$"
    rows = re.findall(row, INDEX.read_text(), flags=re.MULTILINE)
    return [Entry(*row) for row in rows]


def test_the_index_leads_to_every_study() -> None:
    results = EXPERIMENTS / "results"
    pages = {page for page in PAGES if page.is_relative_to(results)}
    pages = {page for page in pages if page.name not in PRINTED_BY_COMMANDS}
    assert pages <= {INDEX.parent / link for link in LINK.findall(INDEX.read_text())}
    of_several_studies = {results / "README.md", results / "theory" / "README.md"}
    assert pages - of_several_studies == {EXPERIMENTS / entry.page for entry in entries()}


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.page)
def test_an_entry_of_the_index_repeats_its_page(entry: Entry) -> None:
    page = (EXPERIMENTS / entry.page).read_text().replace(" \\\n    ", " ")
    assert f"\n{entry.command}\n" in page
    figures = [figure.rstrip(".,") for figure in FIGURE.findall(entry.number)]
    assert figures or "no number" in entry.number
    for figure in figures:
        in_two_cells = figure.replace(" (", " | ").replace(")", " |")
        either = f"{re.escape(figure)}|{re.escape(in_two_cells)}"
        assert re.search(rf"(?<![\w.,])(?:{either})(?![\w]|[.,]\d)", page), figure
