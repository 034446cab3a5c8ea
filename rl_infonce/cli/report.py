"""`rl-infonce report`: one page about the runs of a sweep."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl_infonce.runs.run_directory import made_folder

if TYPE_CHECKING:
    from rl_infonce.report.report import Report
    from rl_infonce.report.trials import Search
    from rl_infonce.sweeps.results import SweepResults
    from rl_infonce.sweeps.sweep_folder import SweepFolder

_BOOTSTRAP_SEED = 0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `report` and its flags."""
    parser = subparsers.add_parser(
        "report",
        usage="%(prog)s DIR [options]",
        example="rl-infonce report sweeps/grid",
        help="compare the arms of a sweep on one page",
        description="Write report.html, one page that needs nothing but itself, report.md and "
        "runs.csv: returns and features of every arm beside the baseline, with intervals, curves, "
        "commands and versions. Missing cells are named. Needs the extra "
        '"report".',
    )
    add = parser.add_argument
    add("sweep", type=Path, metavar="DIR", help="Folder of the sweep.")
    add("-o", "--output", type=Path, metavar="DIR", help="Folder of the report (the sweep's).")
    add("--against", metavar="ARM", help="Compare with this arm, as a placebo (the baseline).")
    add("--raw", action="store_true", help="Compare raw scores, not human-normalised ones.")
    add("--mixed-versions", action="store_true", help="Also show runs of other package versions.")
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Write the report, print where its files are, and return the exit code.

    0: done. 1: a file cannot be written, as on a full disk. Wrong usage leaves with 2, as does a
    sweep of which there is nothing to report.
    """
    from rl_infonce.files.durable import replace_text
    from rl_infonce.runs.evaluation_file import try_to_write_beside

    output = arguments.output or arguments.sweep
    try:
        report = _report(arguments)
        try_to_write_beside(made_folder("--output", output) / "report.html")
    except (ValueError, OSError, ImportError) as error:
        arguments.usage_error(str(error))
    try:
        for name, text in (
            ("report.html", report.html),
            ("report.md", report.markdown),
            ("runs.csv", report.csv),
        ):
            replace_text(output / name, text)
            print(output / name)
    except OSError as error:
        print(f"rl-infonce report: {error}", file=sys.stderr)
        return 1
    return 0


def _report(arguments: argparse.Namespace) -> Report:
    """Return the report of a sweep's folder."""
    import numpy as np

    from rl_infonce.atari.human_scores import human_scores
    from rl_infonce.checks import check_choice
    from rl_infonce.report.report import make_report
    from rl_infonce.sweeps.results import read_results
    from rl_infonce.sweeps.sweep_folder import SweepFolder

    folder = SweepFolder(arguments.sweep)
    results = read_results(folder, mixed_versions=arguments.mixed_versions)
    if arguments.against is not None:
        check_choice("--against", arguments.against, results.grid.arms)
    return make_report(
        f"Sweep {arguments.sweep.resolve().name}",
        results.runs,
        missing=results.missing,
        other_versions=results.notes,
        not_planned=results.not_planned,
        scales=None if arguments.raw else human_scores(),
        rng=np.random.default_rng(_BOOTSTRAP_SEED),
        n_seeds=dict.fromkeys(results.grid.arms, len(results.grid.seeds)),
        search=_search(folder, results),
        against=arguments.against,
    )


def _search(folder: SweepFolder, results: SweepResults) -> Search | None:
    """Return the trials of the sweep's search, if there are any; raise if nothing is done."""
    from rl_infonce.checks import listed
    from rl_infonce.sweeps.study import read_search

    try:
        search = read_search(folder)
    except ModuleNotFoundError as error:
        if not results.runs:
            raise
        print(f"rl-infonce report: trials are left out. {error}", file=sys.stderr)
        return None
    if not results.runs and search is None:
        raise ValueError(
            f"Expected at least one finished cell, got none: {listed(results.missing)}."
        )
    return search
