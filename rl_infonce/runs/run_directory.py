"""A run is a directory: claim a free one, and keep its `run.json` readable at every moment."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rl_infonce

__all__ = [
    "FORMAT_VERSION",
    "claim_run_directory",
    "git_commit",
    "new_record",
    "now",
    "replace_text",
    "software",
    "write_record",
]

FORMAT_VERSION = 1
_PACKAGES = ("ale-py", "gymnasium", "numpy", "stable-baselines3", "tensorboard", "torch")


def claim_run_directory(folder: Path, name: str) -> Path:
    """Create and return `folder/name_n` with the next free n >= 1.

    `os.mkdir` either creates a directory or fails, so runs that start at once never share one.

    Raises:
        OSError: If the folder cannot be created or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    n = 1 + max((_run_number(entry.name, name) for entry in folder.iterdir()), default=0)
    while True:
        run_dir = folder / f"{name}_{n}"
        try:
            os.mkdir(run_dir)
        except FileExistsError:
            n += 1
        else:
            return run_dir


def _run_number(entry: str, name: str) -> int:
    stem, _, number = entry.rpartition("_")
    return int(number) if stem == name and number.isdecimal() else 0


def new_record(arguments: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return what `run.json` says when a run starts."""
    return {
        "format_version": FORMAT_VERSION,
        "status": "running",
        "arguments": dict(arguments),
        "seed": seed,
        **software(),
        "start_time": now(),
    }


def software() -> dict[str, Any]:
    """Return the versions of what computes, and the commit of this checkout."""
    return {
        "versions": {
            "python": platform.python_version(),
            "rl_infonce": rl_infonce.__version__,
            **{package: version(package) for package in _PACKAGES},
        },
        "git_commit": git_commit(Path(rl_infonce.__file__).parents[1]),
    }


def write_record(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Replace `run.json`."""
    replace_text(run_dir / "run.json", json.dumps(record, indent=2) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write a file in one move, so that a reader never meets half of it."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def git_commit(checkout: Path) -> str | None:
    """Return the commit of a checkout ("...-dirty" if changed), None without git or checkout."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
