"""Tell whether a run is finished, and whether it can go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_infonce.training.plan import budget_of

MODEL = "model.zip"
_TABLES = ("progress.csv", "episodes.csv")


def is_finished(run_dir: Path, record: Mapping[str, Any], n_timesteps: int) -> bool:
    """Return whether nothing is left to do: a model that is written again is new to probes."""
    is_done = record.get("status") == "done" and (run_dir / MODEL).is_file()
    return is_done and record.get("n_timesteps_done", 0) >= n_timesteps


def check_unsaved(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Raise unless a run without checkpoints never had one, and may begin anew."""
    had_checkpoints = any(
        session.get("first_step") or session.get("saved_step") for session in record["sessions"]
    )
    if record.get("status") == "done" or had_checkpoints:
        n_done = record.get("n_timesteps_done", 0)
        raise ValueError(
            f"Expected a checkpoint in {run_dir / 'checkpoints'} to go on from, got none of a run "
            f"that trained {n_done} steps (a sweep removes those of finished cells without "
            "--keep-checkpoints). Start another run with -n and another --run-dir."
        )


def check_tables(run_dir: Path, n_trained: int) -> None:
    """Raise unless a run that goes on has its tables, which a report takes for whole."""
    for path in (run_dir / name for name in _TABLES):
        if not path.is_file():
            raise FileNotFoundError(
                f"Expected {path} with the rows up to step {n_trained}, got no such file. Bring it "
                "back, or put an empty file there to go on without these rows."
            )


def keep_model(run_dir: Path, record: Mapping[str, Any], say: Callable[[str], object]) -> None:
    """Rename the model of a run that begins anew, so that nothing is saved over it."""
    model, n_done = run_dir / MODEL, record.get("n_timesteps_done", 0)
    if n_done and model.is_file():
        kept = model.replace(run_dir / f"model_{n_done}.zip")
        say(f"The run ended before its first checkpoint and begins anew; {kept} is its model.")


def check_budget(n_timesteps: int, record: Mapping[str, Any], n_trained: int) -> None:
    """Raise if a budget below what is trained would take the place of a larger one."""
    if n_timesteps < min(n_trained, budget_of(record)):
        raise ValueError(
            f"Expected `-n` above the {n_trained} steps that are trained, got {n_timesteps}. Leave "
            f"`-n` out to go on to {budget_of(record)}."
        )
