"""Which lines and branches of the core do the tests never take, and why?

Reads the report that coverage makes of a run of the tests, and keeps what it says of the losses,
the pairs, the plugin and the checkpoints.

    pip install pytest-cov
    pytest -n 2 --cov=rl_infonce --cov-branch --cov-report=json:FILE
    python experiments/branches.py --coverage FILE --output experiments/results/branches.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from checkouts import last_commit

from rl_infonce.files.durable import replace_text
from rl_infonce.report.table import markdown_table

CORE = {
    "losses": ("rl_infonce/nce/",),
    "pairs": ("rl_infonce/temporal.py", "rl_infonce/copies.py"),
    "plugin": ("rl_infonce/sb3/",),
    "checkpoints": (
        *("rl_infonce/resuming/", "rl_infonce/runs/checkpoints.py"),
        "rl_infonce/pretraining/checkpoint.py",
    ),
}
"""Part -> the beginnings of its files' names."""
REASONS: dict[str, str] = {
    "nce/contrast.py _check_losses": "all losses are finite and their sum is not",
    "nce/contrast.py _automatic_side": "it takes a GPU",
    "nce/critics.py Critic._check_dtypes": "a critic without parameters can only be a user's",
    "nce/gather.py gather": "ranks are processes of their own, whose lines are not counted",
    "nce/gather.py _Gather.forward": "as above",
    "nce/gather.py _Gather.backward": "as above",
    "nce/gather.py _SumOwnRows.forward": "as above",
    "nce/gather.py _SumOwnRows.backward": "as above",
    "nce/gather.py _all_gather": "as above",
    "nce/gather.py _check_same_shape": "as above",
    "sb3/attach.py _rescale": "the host takes a gradient away while it arrives",
    "sb3/binding.py _locals_of_callers": "a stack is deeper than what is looked through",
    "sb3/binding.py current_samples": "it is asked outside of an algorithm's `train`",
    "sb3/callbacks.py InfoNCECallback._init_callback": "a sentence for `verbose=1`",
    "sb3/callbacks.py InfoNCECallback._on_rollout_end": "decoupled updates come before any row",
    "sb3/combined.py _named": "a dictionary with one image alone, whose error needs no name",
    "sb3/extractor.py InfoNCEExtractor.updates_alone": "it is asked of isolated extractors alone",
    "sb3/extractor.py (at import)": "`python -OO`, which a test runs as a process of its own",
    "sb3/hosted.py HostedExtractor.reseed_heads": "each extractor has its own",
    "sb3/hosted.py HostedExtractor.updates_alone": "each extractor has its own",
    "sb3/own_updates.py OwnUpdates.align": "features are so large that their squares are infinite",
    "sb3/session.py Session.looks_again": "SB3's `train` holds its samples, and another's may not",
    "sb3/updates.py find_pairs": "rows of others under `auto`, which then draws and does not warn",
    "resuming/best_model.py _whole_ones": "a whole checkpoint without a mean return",
    "resuming/model_state.py set_run_state": "a model without an environment, which no run has",
    "resuming/mujoco_state.py set_mujoco_state": "physics of another size under the same class",
    "resuming/replay_shards.py load_replay": "a file with more rows than the buffer has",
    "resuming/run_logs.py _Waiting.sync": "the disk refuses rows when they are to be synced",
    "resuming/run_logs.py CSVFormat.write": "a row without a number",
    "resuming/run_logs.py EpisodeLogCallback.sync": "no table of episodes is open",
    "runs/checkpoints.py latest_checkpoint": "a damaged checkpoint that is the only one",
    "runs/checkpoints.py _remove_unshared": "a kept checkpoint is damaged: nothing is removed",
}
"""File and function -> why no test takes all of it."""


class Place(NamedTuple):
    """A function of which a test does not take all."""

    file: str
    function: str
    n_missed: int
    """Lines, and branches of lines that are taken."""


def files_of(part: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return name -> what coverage says of the files of a part."""
    return {name: own for name, own in report["files"].items() if name.startswith(CORE[part])}


def places(report: Mapping[str, Any]) -> Iterator[Place]:
    """Yield each function of the core of which something is never taken."""
    for part in CORE:
        for name, own in files_of(part, report).items():
            for function, found in own["functions"].items():
                lines = found["missing_lines"]
                taken = [each for each in found["missing_branches"] if each[0] not in lines]
                inside = [each for each in taken if each[1] not in lines]
                if lines or inside:
                    title = function or "(at import)"
                    yield Place(name.removeprefix("rl_infonce/"), title, len(lines) + len(inside))


def summary(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each part how much of it is taken."""
    rows = []
    for part in CORE:
        own = [each["summary"] for each in files_of(part, report).values()]
        keys = ("num_statements", "covered_lines", "num_branches", "covered_branches")
        rows.append({"part": part, **{key: sum(each[key] for each in own) for key in keys}})
    return rows


def tables(rows: list[dict[str, Any]], found: list[Place]) -> str:
    """Return both as Markdown, with the reason of each place."""
    parts = [
        [
            row["part"],
            f"{row['covered_lines']} of {row['num_statements']}",
            f"{row['covered_branches']} of {row['num_branches']}",
        ]
        for row in rows
    ]
    lines = [
        [f"`{each.file}`", f"`{each.function}`", str(each.n_missed), REASONS.get(key(each), "")]
        for each in found
    ]
    return "\n".join(
        (
            markdown_table(["part", "lines", "branches"], parts),
            markdown_table(["file", "function", "never taken", "why"], lines),
        )
    )


def key(place: Place) -> str:
    """Return the name of a place among the reasons."""
    return f"{place.file} {place.function}"


def main() -> None:
    """Read a report, write what it says of the core, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--coverage", type=Path, required=True, help="report of coverage")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    report = json.loads(arguments.coverage.read_text(encoding="utf-8"))
    rows, found = summary(report), list(places(report))
    content = {"git_commit": last_commit(), "parts": rows, "places": [p._asdict() for p in found]}
    replace_text(arguments.output, json.dumps(content, indent=1) + "\n")
    print(tables(rows, found), end="")


if __name__ == "__main__":
    main()
