"""The state of one emulator as bytes."""

from __future__ import annotations

from typing import Any

import ale_py


def get_ale_state(ale: Any) -> bytes:
    """Return machine and random numbers of an `ALEInterface`, some 14 kB."""
    return bytes(ale.cloneState(include_rng=True).__getstate__())


def set_ale_state(ale: Any, state: bytes) -> None:
    """Put an `ALEInterface` with the same game loaded where another one was."""
    found: Any = ale_py.ALEState.__new__(ale_py.ALEState)
    found.__setstate__(state)
    ale.restoreState(found)
