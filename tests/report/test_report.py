"""A report says what the runs say: checked number by number, and opened in a browser."""

from __future__ import annotations

import csv
import io
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_infonce.report.comparison import compared, in_common
from rl_infonce.report.report import Report, make_report
from rl_infonce.report.runs import Run, arms_of, score_runs
from rl_infonce.report.tables import Table, to_markdown

pytest.importorskip("matplotlib")
SCALES = {"pong": (-20.0, 20.0), "qbert": (100.0, 1100.0)}
GAIN = {"baseline": 0.0, "infonce": 4.0, "placebo": 0.5}


def run(game: str, arm: str, seed: int, **changes: Any) -> Run:
    """Return a run of 50 episodes whose every return is known."""
    rng = np.random.default_rng([seed, len(game)])
    scale = 1.0 if game == "pong" else 25.0
    returns = scale * (seed + GAIN[arm] + rng.normal(0, 0.1, 50)) + (-10 if game == "pong" else 200)
    steps = np.arange(20, 1020, 20)
    f1 = {"mean": 0.5 + GAIN[arm] / 40, "agent_localization": 0.25}
    curve = (steps, np.linspace(1, 2, 50))
    made = Run(
        game=game,
        algo="ppo",
        arm=arm,
        seed=seed,
        n_steps=1000,
        n_steps_done=1000,
        steps=steps,
        returns=returns,
        curves={"infonce/grad_ratio": curve} if arm != "baseline" else {},
        probes={"converged": {"trained": f1, "untrained": {"mean": 0.4}}},
        command=f"rl-infonce train --game {game} --seed {seed}  # <{arm}> & co",
        versions={"torch": "2.8"},
        machine="a machine",
        seconds=36.0,
    )
    return replace(made, **changes)


RUNS = [run(game, arm, seed) for game in SCALES for arm in GAIN for seed in range(3)]


def area(run: Run) -> float:
    """Return the mean over hundredths of the budget of the episode that ended last."""
    last = [np.flatnonzero(run.steps <= 10 * window) for window in range(1, 101)]
    return float(np.mean([run.returns[each[-1] if len(each) else 0] for each in last]))


def report(runs: list[Run], **changes: Any) -> Report:
    settings: dict[str, Any] = {"missing": [], "scales": SCALES, "rng": np.random.default_rng(0)}
    return make_report("Sweep <x>", runs, **(settings | changes))


def table_of(markdown: str, heading: str) -> dict[str, dict[str, str]]:
    block = markdown.split(f"## {heading}\n\n")[1].split("\n\n")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block]
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def test_returns_and_differences_are_those_of_the_runs() -> None:
    markdown = report(RUNS).markdown
    returns = table_of(markdown, "PPO: mean return over the budget")
    compare = table_of(markdown, "PPO: mean return over the budget, compared")
    areas = {(r.game, r.arm, r.seed): area(r) for r in RUNS}
    for game in SCALES:
        for arm in GAIN:
            own = [areas[game, arm, seed] for seed in range(3)]
            expected = f"{np.mean(own):.4g} ({min(own):.4g} to {max(own):.4g})"
            assert returns[game][arm] == expected
    for arm in ("infonce", "placebo"):
        gains = [
            np.mean([areas[game, arm, s] - areas[game, "baseline", s] for s in range(3)])
            / (high - low)
            for game, (low, high) in SCALES.items()
        ]
        assert compare[arm]["difference"].startswith(f"{np.mean(gains):+.3f} (")
        assert compare[arm]["pairs"] == "6 in 2 games"
        assert compare[arm]["in words"] == "higher"
    assert list(compare) == ["infonce", "placebo"]


def test_equal_arms_have_no_detectable_difference() -> None:
    rng = np.random.default_rng(0)
    runs = [replace(r, returns=r.returns + rng.normal(0, 3)) for r in RUNS if r.arm == "baseline"]
    other = [replace(r, arm="infonce", returns=r.returns + rng.normal(0, 3)) for r in runs]
    found = table_of(
        report([*runs, *other]).markdown, "PPO: mean return of its last tenth, compared"
    )
    assert found["infonce"]["in words"] == "no detectable difference"


def test_features_stand_beside_the_untrained_ones() -> None:
    found = table_of(report(RUNS).markdown, "PPO: what the features know (converged)")
    assert list(found) == ["mean", "agent localization"]
    assert found["mean"] == {
        **{"untrained": "0.400", "baseline": "0.500", "infonce": "0.600", "placebo": "0.512"},
    }
    assert found["agent localization"]["untrained"] == "missing"


def test_missing_and_unequal_seeds_are_shown() -> None:
    runs = [r for r in RUNS if (r.game, r.arm, r.seed) != ("pong", "infonce", 2)]
    planned = dict.fromkeys(GAIN, 3)
    made = report(runs, missing=["pong-ppo-infonce-2 (failed)"], n_seeds=planned)
    assert "Missing: pong-ppo-infonce-2 (failed)" in made.markdown
    assert "pong-ppo-infonce-2 (failed)" in made.html
    returns = table_of(made.markdown, "PPO: mean return over the budget")
    assert returns["pong"]["infonce"].endswith("2 of 3 seeds")
    assert table_of(made.markdown, "PPO: mean return of its last tenth, compared")["infonce"][
        "pairs"
    ] == ("5 in 2 games")
    assert "infonce: left out pong: seeds 2 that only one of them has" in made.markdown
    assert len(list(csv.DictReader(io.StringIO(made.csv)))) == 17


def test_a_run_without_an_episode_is_in_no_average() -> None:
    empty: dict[str, Any] = {"steps": np.array([], np.int64), "returns": np.array([])}
    runs = [replace(r, **empty) if (r.game, r.arm) == ("pong", "placebo") else r for r in RUNS]
    made = report(runs)
    assert (
        table_of(made.markdown, "PPO: mean return of its last tenth")["pong"]["placebo"]
        == "missing"
    )
    assert table_of(made.markdown, "PPO: mean return of its last tenth, compared")["placebo"][
        "pairs"
    ] == ("3 in 1 games")


def test_every_run_is_in_the_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(report(RUNS).csv)))
    assert len(rows) == len(RUNS)
    for row, each in zip(rows, RUNS, strict=True):
        assert (row["game"], row["arm"], int(row["seed"])) == (each.game, each.arm, each.seed)
        assert float(row["area"]) == pytest.approx(area(each))
        assert float(row["final"]) == pytest.approx(each.returns[-5:].mean())
        assert float(row["f1_converged"]) == each.probes["converged"]["trained"]["mean"]


@pytest.mark.parametrize(
    ("runs", "message"),
    [([], "at least one finished run"), ([RUNS[0], RUNS[0]], r"once, got \[\('pong', 'ppo'")],
)
def test_what_cannot_be_reported_is_refused(runs: list[Run], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report(runs)


def test_only_common_seeds_are_compared() -> None:
    ours = {"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {0: 1.0}, "c": {0: 1.0, 1: 1.0}}
    theirs = {"a": {1: 1.0, 0: 0.5}, "b": {0: 1.0}, "d": {3: 1.0}}
    pairs, left_out = in_common(ours, theirs)
    assert pairs == {"a": [0, 1]}
    assert left_out == [
        "a: seeds 2 that only one of them has",
        "b: one common seed, of which no interval can be made",
        "c: seeds 0, 1 that only one of them has",
        "d: seeds 3 that only one of them has",
    ]
    found = compared(ours, theirs, rng=np.random.default_rng(0))
    assert found is not None
    assert found.difference.mean == pytest.approx(((1.0 - 0.5) + (2.0 - 1.0)) / 2)
    scales = {"x": (0.0, 1.0)}
    assert compared(ours, theirs, rng=np.random.default_rng(0), scales=scales) is None


def test_the_baseline_comes_first() -> None:
    assert arms_of(score_runs([run("pong", "placebo", 0), run("pong", "baseline", 0)])) == [
        *("baseline", "placebo"),
    ]


def test_cells_cannot_break_a_markdown_table() -> None:
    assert to_markdown(Table(["a|b"], [["c|d"]], ["note"])) == ("| a/b |\n| --- |\n| c/d |\n\nnote")


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
    html = report(RUNS).html
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    assert len(reader.names) == len(set(reader.names)), "names of different charts never meet"
    assert all(address.startswith("#") for address in reader.addresses)
    assert {address[1:] for address in reader.addresses} <= set(reader.names)
    assert "<script" not in html
    assert "Sweep &lt;x&gt;" in html
    assert "&lt;infonce&gt; &amp; co" in html
    assert 'aria-label="return on pong: baseline, infonce, placebo"' in html
    assert "a difference of" in html
    assert html == report(RUNS).html, "the same runs make the same page"


def test_it_is_readable_on_a_phone_and_on_a_desk(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium")
    path = tmp_path / "report.html"
    path.write_text(report(RUNS).html, encoding="utf-8")
    with sync_api.sync_playwright() as play:
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
            assert view.locator("svg").count() == 4
            widths = view.evaluate(
                "[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().width)"
            )
            assert min(widths) > 250
            view.screenshot(path=tmp_path / f"{width}.png", full_page=True)
        browser.close()
    assert re.search(rb"^\x89PNG", (tmp_path / "390.png").read_bytes())
