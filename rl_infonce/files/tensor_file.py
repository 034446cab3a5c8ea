"""Write tensors with a text header as safetensors files, and read such files by anyone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rl_infonce.files.durable import replace_bytes


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors on any device, which may share memory, in one move."""
    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    replace_bytes(path, save(owned, metadata=dict(header)))


@contextlib.contextmanager
def opened_tensors(path: Path) -> Iterator[Any]:
    """Open a file as `safe_open` does; ValueError names a file that is not a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, RuntimeError) as error:  # torch's, for a file too large to map
        raise ValueError(f"Expected a safetensors file at {path}, got: {error}.") from error


def shapes_in(file: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in an open file without reading the tensors."""
    return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_same(where: str, what: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Raise unless a file has the expected names, each with the expected `what`, e.g. "shape".

    Shapes are compared before tensors are read: a file can claim more than the memory holds.
    """
    for name in sorted(expected.keys() | got.keys()):
        if expected.get(name) != got.get(name):
            raise ValueError(
                f"Expected tensor `{name}` in {where} of {what} {expected.get(name, 'none')}, got "
                f"{got.get(name, 'none')}."
            )
