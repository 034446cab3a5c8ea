"""Run commands in this process, and return what they print and leave in a run directory."""

import contextlib
import csv
import io
from pathlib import Path
from typing import Any, NoReturn

import pytest
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.cli import main
from rl_infonce.files.state_file import StateBytes, unpack_state
from rl_infonce.runs.checkpoints import latest_checkpoint
from tests.resuming.killing import timeless_copy

KEPT = ("parameters", "observed", "env", "streams", "extractors", "statistics", "replay")


def ctrl_c(*_given: Any, **_settings: Any) -> NoReturn:
    raise KeyboardInterrupt


class AtStep(BaseCallback):
    """Does something once."""

    def __init__(self, step: int, action: Any) -> None:
        super().__init__()
        self.step, self.action = step, action

    def _on_step(self) -> bool:
        if self.num_timesteps == self.step:
            self.action()
        return True


def output_of(*words: str, code: int = 0) -> str:
    """Return what a command prints that ends with this exit code."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main([*words]) == code
    return said.getvalue()


def errors_of(*words: str, code: int = 1) -> str:
    """Return what a command prints as errors that ends with this exit code."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main([*words]) == code
    return said.getvalue()


def refusal(*words: str) -> str:
    """Return what a command prints as an error before it exits with 2."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as leaving:
        main([*words])
    assert leaving.value.code == 2
    return said.getvalue()


def state_of(run_dir: Path) -> dict[str, Any]:
    """Return what the last checkpoint says, which is exact, but for what is of the time of day."""
    checkpoint = latest_checkpoint(run_dir / "checkpoints")
    assert checkpoint.about["is_exact"]
    files = [(checkpoint.path / f"state.{kind}").read_bytes() for kind in ("json", "safetensors")]
    state = timeless_copy(unpack_state(StateBytes(*files)))
    return {"step": checkpoint.step, **{name: state[name] for name in KEPT}}


def rows_of(run_dir: Path, table: str = "progress.csv") -> list[dict[str, str]]:
    """Return the rows of a table of a run, without what is of the time of day."""
    with (run_dir / table).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
