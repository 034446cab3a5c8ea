"""Which software computes: versions of packages, and the commit of a checkout."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rl_infonce

PACKAGES = ("ale-py", "gymnasium", "numpy", "stable-baselines3", "tensorboard", "torch")
"""The packages that compute, whose versions a record notes."""

_DECIDING = ("torch", "ale-py", "gymnasium", "numpy", "stable-baselines3", "rl_infonce")


def software() -> dict[str, Any]:
    """Return the versions of the packages that compute, and the commit of this checkout."""
    return {
        "versions": {
            "python": platform.python_version(),
            "rl_infonce": rl_infonce.__version__,
            **{package: version(package) for package in PACKAGES},
        },
        "git_commit": _own_commit(),
    }


@cache
def _own_commit() -> str | None:
    """Return the commit of the code that this process has imported."""
    return git_commit(Path(rl_infonce.__file__).parents[1])


def software_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions and the commit of all sessions of a run, as `software` names them.

    If sessions had several, these stand in the order of their use with ", " between them.
    """
    found = [each for each in (record, *record["sessions"]) if "versions" in each]
    names = dict.fromkeys(name for each in found for name in each["versions"])
    return {
        "versions": {name: _joined(each["versions"].get(name) for each in found) for name in names},
        "git_commit": _joined(each.get("git_commit") for each in found) or None,
    }


def _joined(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def differing_versions(own: Mapping[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    """Return former versions, None if unknown, of packages that decide results and differ now."""
    return {name: former.get(name) for name in _DECIDING if own.get(name) != former.get(name)}


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
