"""Where to compute."""

from __future__ import annotations

import os

import torch

__all__ = ["usable_device"]


def usable_device(name: str) -> torch.device:
    """Return a device after trying it.

    Args:
        name: As torch spells it; "auto" is the GPU if there is one. Under torchrun both "auto" and
            "cuda" are the rank's own GPU.

    Raises:
        ValueError: If it cannot be used.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ValueError(f"Expected `--device` to be usable: {error}") from error
