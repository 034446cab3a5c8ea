"""Run commands in this process, and return what they print."""

import contextlib
import io
from typing import Any, NoReturn

import pytest
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.cli import main


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
