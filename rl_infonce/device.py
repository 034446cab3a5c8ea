"""Where to compute."""

from __future__ import annotations

import os

import torch

__all__ = ["usable_device"]


def usable_device(name: str) -> torch.device:
    """Return a device after trying it.

    Args:
        name: As torch spells it; "auto" is the GPU if there is one, under torchrun the rank's own.

    Raises:
        ValueError: If it cannot be used.
    """
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ValueError(f"Expected `--device` to be usable: {error}") from error
