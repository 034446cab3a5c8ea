"""The physics of Gymnasium's MuJoCo environments as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# A step reads where bodies were before it computes where they are (Ant, Humanoid).
_READ_BEFORE_A_STEP = ("xpos", "xipos")


def is_mujoco(part: Any) -> bool:
    """Return whether this is one of Gymnasium's own environments on MuJoCo."""
    is_theirs = type(part).__module__.startswith("gymnasium.envs.mujoco.")
    return is_theirs and hasattr(part, "model") and hasattr(part, "data")


def get_mujoco_state(env: Any) -> dict[str, npt.NDArray[np.float64]]:
    """Return all that the next step of the physics depends on.

    MuJoCo's "integration" state has positions, velocities, controls, activations, and the solver's
    warm start, without which a step differs in its last bits.
    """
    import mujoco

    kind = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    numbers = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, numbers, kind)
    return {
        "integration": numbers,
        **{name: getattr(env.data, name).copy() for name in _READ_BEFORE_A_STEP},
    }


def set_mujoco_state(env: Any, state: Mapping[str, npt.NDArray[np.float64]]) -> None:
    """Set the physics of an environment of the same model; ValueError if it is another one's."""
    import mujoco

    kind = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    expected = mujoco.mj_stateSize(env.model, kind)
    if state["integration"].shape != (expected,):
        raise ValueError(
            f"Expected a MuJoCo state of {expected} numbers, got {state['integration'].shape}."
        )
    mujoco.mj_setState(env.model, env.data, state["integration"], kind)
    for name in _READ_BEFORE_A_STEP:
        getattr(env.data, name)[:] = state[name]
