"""Checkouts of commits, and results of one commit that are gone on with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"


def last_commit() -> str:
    """Return the last commit, whatever is not committed yet."""
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()


def checked_out(commit: str, path: Path) -> Path:
    """Return a new checkout of a commit."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(path)], check=True)
    subprocess.run(["git", "checkout", "-q", commit], check=True, cwd=path)
    return path


def read_results(path: Path, commit: str) -> dict[str, Any]:
    """Return what a commit wrote before an interruption, or its name alone.

    Raises:
        ValueError: If another commit is in the file.
    """
    if not path.exists():
        return {"git_commit": commit}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if found["git_commit"] != commit:
        raise ValueError(
            f"Expected results of {commit} in {path}, got those of {found['git_commit']}. "
            "Move that file away to begin anew."
        )
    return found
