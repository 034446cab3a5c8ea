"""The size of the package, and how long its import and its help take."""

from pathlib import Path

import start_up


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
