"""The size of the package, and how long its import and its help take."""

import statistics
from pathlib import Path

import start_up

from tests.experiments.loading import EXPERIMENTS, committed, study_page


def test_the_package_of_a_folder_is_timed(tmp_path: Path) -> None:
    package = tmp_path / "rl_infonce"
    package.mkdir()
    (package / "__init__.py").write_text("import time\ntime.sleep(0.3)\n")
    assert start_up.seconds(start_up.TIMED["import rl_infonce"], tmp_path) >= 0.3


def test_a_command_is_that_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "rl-infonce"
    program.write_text("#!/bin/sh\ntouch ran-$1\n")
    program.chmod(0o755)
    start_up.seconds(start_up.TIMED["rl-infonce --help"], tmp_path)
    assert (tmp_path / "ran---help").exists()


def test_medians_are_shown_beside_sizes() -> None:
    sizes = dict.fromkeys(start_up.SIZES, 607_400)
    times = {timed: [9.0, 0.25, 0.5] for timed in start_up.TIMED}
    commits = ("before", "now")
    table = start_up.table(
        {
            "commits": {"before": "0123456789"},
            "bytes": dict.fromkeys(commits, sizes),
            "seconds": dict.fromkeys(commits, times),
        }
    )
    assert "before (01234567)" in table
    assert "| wheel | 607 kB | 607 kB |" in table
    assert table.count("| 0.500 s | 0.500 s |") == len(start_up.TIMED)


def test_the_page_holds_what_was_measured() -> None:
    summary = committed("start_up.json")
    assert start_up.table(summary) in study_page("start_up.md")
    assert summary["commits"]["before"] == start_up.BEFORE
    index = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    timed = summary["seconds"]["now"]
    names = ("import rl_infonce", "InfoNCEExtractor", "import stable_baselines3, torch._dynamo")
    package, extractor, needed = (statistics.median(timed[name]) for name in names)
    for said in (
        f"wheel {summary['bytes']['now']['wheel'] / 1000:.0f} kB",
        f"`import rl_infonce` {package:.3f} s",
        f"`InfoNCEExtractor` {extractor:.3f} s, SB3 and torch's compiler alone {needed:.3f} s",
    ):
        assert said in index
