"""Compute the features of many observations with a frozen encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rl_infonce.checks import check_count
from rl_infonce.probing.arrays import as_observations


def extract_features(
    encoder: nn.Module | Callable[[Tensor], Tensor],
    observations: Any,
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
) -> npt.NDArray[np.float32]:
    """Encode every observation, in evaluation mode and without gradients.

    A module is put into evaluation mode, and each part is afterwards put back into its own mode;
    no random numbers are drawn.

    Args:
        encoder: Maps observations [B, ...] on the device to [B, D]; it scales pixels itself.
        observations: K observations, as in `LabelledObservations`; read in batches.
        batch_size: Number of observations per call, >= 1.
        device: Device of the encoder; None takes that of its first parameter, or the CPU.

    Returns:
        Features [K, D] float32.

    Raises:
        TypeError: If the observations are a dictionary.
        ValueError: If there are no observations, or the encoder does not return one row each.
    """
    observations = as_observations(observations)
    if len(observations) == 0:
        raise ValueError("Expected at least one observation to encode, got none.")
    check_count("batch_size", batch_size)
    where = _device_of(encoder) if device is None else torch.device(device)
    found: list[npt.NDArray[np.float32]] = []
    with torch.no_grad(), evaluating(encoder):
        for start in range(0, len(observations), batch_size):
            rows = np.arange(start, min(start + batch_size, len(observations)))
            images = _as_tensor(observations[rows]).to(where)
            encoded = encoder(images)
            shape = tuple(encoded.shape) if isinstance(encoded, Tensor) else type(encoded).__name__
            if not isinstance(encoded, Tensor) or encoded.ndim != 2 or len(encoded) != len(rows):
                raise ValueError(
                    f"Expected the encoder to return [{len(rows)}, D] for {tuple(images.shape)}, "
                    f"got {shape}. Flatten its output."
                )
            found.append(encoded.float().cpu().numpy())
    return np.concatenate(found)


def _as_tensor(observations: Any) -> Tensor:
    if isinstance(observations, Tensor):
        return observations.detach()
    return torch.as_tensor(np.ascontiguousarray(observations))


def _device_of(encoder: Any) -> torch.device:
    if isinstance(encoder, nn.Module):
        for parameter in encoder.parameters():
            return parameter.device
    return torch.device("cpu")


@contextmanager
def evaluating(encoder: Any) -> Iterator[None]:
    """Put a module into evaluation mode, and afterwards every part back into its own mode."""
    modules = list(encoder.modules()) if isinstance(encoder, nn.Module) else []
    modes = [module.training for module in modules]
    if isinstance(encoder, nn.Module):
        encoder.eval()
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode  # not train(), in which extractors do more than set the flag
