"""The state of one emulator as bytes."""

from __future__ import annotations

from typing import Any

import ale_py


def get_ale_state(ale: Any) -> bytes:
    """Return the machine and the random numbers of an `ALEInterface` in some 14 kB."""
    return bytes(ale.cloneState(include_rng=True).__getstate__())


def set_ale_state(ale: Any, state: bytes) -> None:
    """Set the state of an `ALEInterface` that has loaded the same game."""
    found: Any = ale_py.ALEState.__new__(ale_py.ALEState)
    found.__setstate__(state)
    ale.restoreState(found)
