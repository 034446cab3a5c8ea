"""Claim a free run directory, and keep its `run.json` readable at every moment."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rl_infonce.files.digests import sha256_of
from rl_infonce.files.durable import replace_text
from rl_infonce.files.json_text import is_finite, read_json
from rl_infonce.runs.claim import held
from rl_infonce.runs.software import software

FORMAT_VERSION = 2
RECORD = "run.json"
_KINDS = {"arguments": dict, "arguments_sha256": str, "seed": int, "sessions": list}


def _is_step(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


_OPTIONAL_KINDS: dict[str, Callable[[Any], bool]] = {  # of the record, or of its sessions
    "status": lambda value: type(value) is str,
    "n_timesteps": _is_step,
    "n_timesteps_done": _is_step,
    "first_step": _is_step,
    "last_step": _is_step,
    "saved_step": lambda value: value is None or _is_step(value),
    "wall_seconds": is_finite,
    "loss": lambda value: type(value) is dict,
    "versions": lambda value: type(value) is dict,
}


def made_folder(flag: str, folder: Path) -> Path:
    """Return a folder, which is made if it is missing; an error names the flag."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"Expected `{flag}` to be a folder that can be made, got {folder}: {error.strerror}. "
            "Name another."
        ) from error
    return folder


def claim_run_directory(folder: Path, name: str) -> Path:
    """Create and return `folder/name_n` with the next free n >= 1.

    `os.mkdir` either creates a directory or fails, so runs that start together never share one.
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
    """Return the content of `run.json` at the start of a run."""
    return {
        "format_version": FORMAT_VERSION,
        "status": "running",
        "command": shlex.join(sys.argv),
        "arguments": dict(arguments),
        "arguments_sha256": _hash_of(arguments),
        "seed": seed,
        "sessions": [],
        **software(),
        "start_time": now(),
    }


def read_record(run_dir: Path) -> dict[str, Any]:
    """Return the content of `run.json`; ValueError if it is not a record or was changed."""
    path = run_dir / RECORD
    if not path.is_file():
        raise FileNotFoundError(f"Expected a run in {run_dir}, got no run.json there.")
    try:
        record = read_json(path)
        version = record["format_version"]
        if version == FORMAT_VERSION:
            _check_kinds(record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Expected a record of a run in {path}, got: {error!r}.") from error
    if version != FORMAT_VERSION:
        raise ValueError(f"Expected {path} in format {FORMAT_VERSION}, got {version!r}.")
    if _hash_of(record["arguments"]) != record["arguments_sha256"]:
        raise ValueError(f"Expected the arguments in {path} as they were written, got others.")
    return dict(record)


def _check_kinds(record: Mapping[str, Any]) -> None:
    """Raise an error of any kind unless a record has what a continued run reads from it."""
    for key, kind in _KINDS.items():
        if type(record[key]) is not kind:
            raise TypeError(f"`{key}` of type {type(record[key]).__name__}")
    for each in (record, *record["sessions"]):
        for key in each.keys() & _OPTIONAL_KINDS.keys():
            if not _OPTIONAL_KINDS[key](each[key]):
                raise TypeError(f"`{key}` that is {each[key]!r}")


def hold_run(run_dir: Path) -> AbstractContextManager[None]:
    """Keep other processes out of a run; the system frees the lock of a process that died."""
    return held(run_dir, "trains in it")


def _hash_of(arguments: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(arguments, sort_keys=True).encode())


def seconds_of(record: Mapping[str, Any]) -> float:
    """Return the seconds that all steps of a run take at the rate of its sessions that ended.

    A session that was killed noted no seconds, and steps after its last checkpoint were trained
    twice: the sum of the noted seconds is neither the time of the run nor that of its steps.
    0.0 means unknown, because no session that ended trained a step.
    """
    n_done, n_steps, seconds = record.get("n_timesteps_done", 0), 0, 0.0
    for session in record["sessions"]:
        if "wall_seconds" in session and "first_step" in session:
            # the sessions of a few published runs noted no last step
            n_steps += max(session.get("last_step", n_done) - session["first_step"], 0)
            seconds += session["wall_seconds"]
    return max(seconds * (n_done / n_steps), 0.0) if n_steps else 0.0


def write_record(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Replace `run.json`."""
    replace_text(run_dir / RECORD, json.dumps(record, indent=2) + "\n")


def now() -> str:
    """Return the time in UTC to the second, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
