"""Take numbers from what users hold: arrays, memory maps, lists, tensors on any device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_infonce.checks import check_shape


def as_array(values: Any) -> npt.NDArray[Any]:
    """Return an array, of a tensor on any device or a list also."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # numpy has no bfloat16, and float32 holds each of its numbers
        values = values.float() if values.dtype == torch.bfloat16 else values
    return np.asarray(values)


def as_arrays(name: str, values: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays by variable; errors call the dictionary `name`."""
    if not isinstance(values, Mapping):
        raise TypeError(
            f"Expected `{name}` to be a dictionary from names of variables to numbers, got "
            f"{type(values).__name__}. Pass {name}={{'name': ...}}."
        )
    return {variable: as_array(each) for variable, each in values.items()}


def as_observations(observations: Any) -> Any:
    """Return observations that integer arrays index: those of a list as an array."""
    if isinstance(observations, Mapping):
        raise TypeError(
            "Expected `observations` to be one array, got a dictionary, which probes do not read. "
            "Pass one of its entries, which tells frames apart, and give features that you compute "
            "from all of them to `probe_features`."
        )
    return as_array(observations) if isinstance(observations, list | tuple) else observations


def as_features(
    features: Any, n_rows: str | int = "K", n_columns: str | int = "D"
) -> npt.NDArray[np.float32]:
    """Return finite features [K, D], of these sizes where they are numbers."""
    given = as_array(features)
    check_shape("features", given, (n_rows, n_columns))
    if given.dtype.kind not in "biuf":
        raise TypeError(f"Expected `features` to be real numbers, got {given.dtype}.")
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(given, dtype=np.float32)
    finite = np.isfinite(found)
    if not finite.all():
        raise ValueError(
            f"Expected finite `features`, got NaN or infinity in {(~finite.all(axis=1)).sum()} of "
            f"{found.shape[0]} rows and {(~finite.all(axis=0)).sum()} of {found.shape[1]} "
            "dimensions, as float32. Look for a diverged encoder."
        )
    return found
