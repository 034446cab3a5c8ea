"""Read and set the state of a process's random streams."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def n_gpus() -> int:
    """Return the number of GPUs with random streams."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def get_random_streams() -> dict[str, Any]:
    """Return the state of the global streams of Python, NumPy, torch and its GPUs."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (SB3 draws from it)
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_streams(state: Mapping[str, Any]) -> None:
    """Set the state of the global streams on a machine with the same number of GPUs."""
    if len(state["cuda"]) != n_gpus():
        raise ValueError(
            f"Expected random streams of {n_gpus()} GPUs, as there are here, got those of "
            f"{len(state['cuda'])}."
        )
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"])
