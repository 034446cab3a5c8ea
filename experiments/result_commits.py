"""Which commit made each published result?

Prints a table of the files and folders of results with the commits that they name. A result
without a name was committed with the code that made it, and that commit stands in brackets.

    python experiments/result_commits.py
"""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from checkouts import RESULTS, ROOT

from rl_infonce.report.table import markdown_table

PICTURES = ("probe_tensorboard", "report_page")
"""Folders that have nothing else."""
SHOWN = 8
"""Digits of a commit."""


def results(folder: Path = RESULTS) -> Iterator[Path]:
    """Yield each file of results that is not in a study's folder, and each study's folder."""
    groups = {folder, folder / "regimes", folder / "theory"}
    for path in sorted(each for group in groups for each in group.iterdir()):
        if path not in groups and (path.suffix == ".json" or path.is_dir()):
            yield path


def named_commits(path: Path) -> set[str]:
    """Return the commits that the files of a result name."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    found: set[str] = set()
    for file in files:
        if file.suffix == ".json":
            found |= _in_json(json.loads(file.read_text(encoding="utf-8")))
        elif file.suffix == ".csv":
            with file.open(newline="", encoding="utf-8") as stream:
                found |= {
                    row["git_commit"] for row in csv.DictReader(stream) if "git_commit" in row
                }
    return {each[:SHOWN] for each in found if each}


def _in_json(content: object) -> set[str]:
    if isinstance(content, list):
        return set().union(*map(_in_json, content))
    if not isinstance(content, dict):
        return set()
    own = content.get("git_commit")
    named = {own} if isinstance(own, str) else set()
    return named.union(*map(_in_json, content.values()))


def commit_in_git(path: Path) -> str:
    """Return the commit that last changed a result, whatever its page and pictures say since."""
    no_result = [":!*.md", ":!*.png"] if path.is_dir() and path.name not in PICTURES else []
    command = ["git", "log", "-1", f"--abbrev={SHOWN}", "--format=%h", "--", str(path), *no_result]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def words(path: Path) -> str:
    """Return the commits of a result in words."""
    found = named_commits(path)
    return ", ".join(sorted(found)) if found else f"({commit_in_git(path)})"


def table() -> str:
    """Return all results and their commits as Markdown."""
    rows = [[str(path.relative_to(RESULTS)), words(path)] for path in results()]
    return markdown_table(["result", "commits"], rows)


if __name__ == "__main__":
    print(table(), end="")
