"""One HTML page that needs nothing but itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from rl_infonce.report.charts import Chart
from rl_infonce.report.table import Table

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 80rem; padding: 1rem;
  color: #111; background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2rem; }
p { max-width: 60rem; }
/* A shadow at the side where more of a wide table is. */
.wide { overflow-x: auto; background:
  linear-gradient(90deg, #fff 30%, #fff0) 0 / 3rem 100% no-repeat local,
  linear-gradient(270deg, #fff 30%, #fff0) 100% / 3rem 100% no-repeat local,
  linear-gradient(90deg, #0004, #0000) 0 / .8rem 100% no-repeat scroll,
  linear-gradient(270deg, #0004, #0000) 100% / .8rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem;
  overflow-wrap: normal; }
th, td { border-bottom: 1px solid #ccc; padding: .3rem .5rem; text-align: left;
  white-space: nowrap; }
thead th { border-bottom: 2px solid #111; white-space: normal; vertical-align: bottom; }
@media (max-width: 40rem) { th, td { white-space: normal; padding: .3rem; } }
.heat { background: color-mix(in srgb, #8fb8e0 var(--share), #fff); }
.missing { background: repeating-linear-gradient(45deg, #fff, #fff 4px, #ddd 4px, #ddd 5px); }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; flex: 0 1 18.5rem; } svg { width: 100%; height: auto; }
figcaption { font-size: .8rem; }
pre { overflow-x: auto; background: #f4f4f4; padding: .6rem; font-size: .8rem; }
"""


def page(title: str, sections: Iterable[str]) -> str:
    """Return a whole page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a section of HTML parts below a heading of plain text."""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def paragraph(text: str) -> str:
    """Return a paragraph of plain text, in which `backticks` mark what stands so elsewhere."""
    marked = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return f"<p>{marked}</p>"


def table_html(table: Table, *, heat: bool = False, name: str = "") -> str:
    """Return a table, its missing cells hatched, in a region that keys can scroll.

    With `heat`, numbers in [0, 1] shade their cells, the darker the nearer to 1. `name` is the
    label for those who cannot see the table.
    """
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "\n".join(f"<tr>{_row(row, heat)}</tr>" for row in table.rows)
    notes = "".join(paragraph(note) for note in table.notes)
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(name)}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>\n{notes}"
    )


def _row(row: Sequence[str], heat: bool) -> str:
    first, *cells = row
    return f'<th scope="row">{escape(first)}</th>' + "".join(_cell(cell, heat) for cell in cells)


def _cell(cell: str, heat: bool) -> str:
    if cell == "missing":
        return f'<td class="missing">{cell}</td>'
    if heat and re.fullmatch(r"[01]\.\d+", cell):
        return f'<td class="heat" style="--share: {100 * float(cell):.1f}%">{cell}</td>'
    return f"<td>{escape(cell)}</td>"


def figures(charts: Sequence[Chart], *, prefix: str = "") -> str:
    """Return charts, as many side by side as there is room for, then those that are not there.

    `prefix` begins the names of the charts' definitions: each call on a page takes another one.
    """
    shown = "\n".join(
        f'<figure><div role="img" aria-label="{escape(chart.text)}">'
        f"{_own_names(chart.svg, f'{prefix}{index}')}</div>"
        + (f"<figcaption>{escape(chart.note)}</figcaption></figure>" if chart.note else "</figure>")
        for index, chart in enumerate(charts)
        if chart.svg
    )
    absent = "\n".join(paragraph(f"{chart.text}.") for chart in charts if not chart.svg)
    return f'<div class="charts">\n{shown}\n</div>\n{absent}'


def _own_names(svg: str, prefix: str) -> str:
    """Return an SVG whose definitions do not meet those of the others on the page."""
    svg = re.sub(r'\bid="', f'id="c{prefix}-', svg)
    svg = svg.replace('href="#', f'href="#c{prefix}-')
    return svg.replace("url(#", f"url(#c{prefix}-")


def details(title: str, text: str) -> str:
    """Return preformatted plain text that opens on demand."""
    return f"<details><summary>{escape(title)}</summary>\n<pre>{escape(text)}</pre></details>"
