"""The page of a report: whole, alone, and readable; opened in a browser where there is one."""

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from tests.report.test_report import RUNS, report

pytest.importorskip("matplotlib")


class Reader(HTMLParser):
    """Checks that tags close, and keeps names and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.names.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.addresses.append(value or "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in ("meta", "br"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    html = report(RUNS, with_charts=True).html
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    assert len(reader.names) == len(set(reader.names)), "names of different charts never meet"
    assert all(address.startswith("#") for address in reader.addresses)
    assert {address[1:] for address in reader.addresses} <= set(reader.names)
    assert "<script" not in html
    assert "Sweep &lt;x&gt;" in html
    assert "&lt;infonce&gt; &amp; co" in html
    assert 'aria-label="return on pong: baseline ends at ' in html
    assert "found in 4 of 5" in html
    assert "no interval is corrected for the number of comparisons" in html
    assert "<code>found in 4 of 5</code> is how large" in html
    assert html == report(RUNS, with_charts=True).html, "the same runs make the same page"


def test_it_is_readable_on_a_phone_and_on_a_desk(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium")
    path = tmp_path / "report.html"
    runs = [replace(each, commits=("5ff65a5de31db2819387dc99661f68a662220b48",)) for each in RUNS]
    path.write_text(report(runs, with_charts=True).html, encoding="utf-8")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (390, 1280):
            view = browser.new_page(viewport={"width": width, "height": 800})
            asked: list[str] = []

            def note(request: Any, asked: list[str] = asked) -> None:
                asked.append(request.url)

            view.on("request", note)
            view.goto(path.as_uri())
            assert asked == [path.as_uri()], "no network"
            assert view.evaluate("document.documentElement.scrollWidth") <= width
            assert view.locator("svg").count() == 5
            widths = view.evaluate(
                "[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().width)"
            )
            assert min(widths) > 250
            tops = view.evaluate(
                "[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().top)"
            )
            profile, *curves = tops
            assert profile < min(curves)
            assert len(set(curves)) == (4 if width == 390 else 1), "four games side by side"
            view.screenshot(path=tmp_path / f"{width}.png", full_page=True)
        browser.close()
    assert re.search(rb"^\x89PNG", (tmp_path / "390.png").read_bytes())
