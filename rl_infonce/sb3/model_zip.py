"""What can be read of an SB3 model file without executing anything in it."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["SavedPolicy", "read_model_zip"]

_LARGEST = {"data": 2**28, "policy.pth": 2**30}
"""Member -> bytes it may have unpacked. NatureCNN's policies take some 10 MB."""


class SavedPolicy(NamedTuple):
    """The readable text and the tensors of a saved model.

    Attributes:
        text: What `data` says in plain JSON; pickles are in it as strings that nobody decodes.
        tensors: Name to tensor of the policy.
    """

    text: dict[str, Any]
    tensors: dict[str, Tensor]


def read_model_zip(path: str | os.PathLike[str]) -> SavedPolicy:
    """Read text and policy tensors of a file written by SB3's `model.save`.

    SB3 keeps pickles in such a file, and `PPO.load` executes them. They are left alone here: of
    `data` only the JSON is parsed, and `policy.pth` is read with torch's restricted unpickler,
    which builds tensors and nothing else. Sizes are compared with limits before anything is
    unpacked.

    Raises:
        ValueError: If the file is no zip file, is damaged, is not SB3's, or looks made to harm.
        OSError: If the file cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected a saved SB3 model at {path}, got no such file.")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive)
            text = _parse_text(path, archive.read("data"))
            weights = archive.read("policy.pth")
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"Expected {path} to be a whole zip file as SB3's model.save writes it, got: {error}."
        ) from error
    return SavedPolicy(text, _read_tensors(path, weights))


def _check_members(path: Path, archive: zipfile.ZipFile) -> None:
    names = [member.filename for member in archive.infolist()]
    for name in names:
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or name.startswith(("/", "\\")) or ":" in name:
            raise ValueError(f"Expected plain member names in {path}, got {name!r}.")
    for name, largest in _LARGEST.items():
        if names.count(name) != 1:
            raise ValueError(
                f"Expected {path} to hold one `{name}`, as whole files of SB3's model.save do, got "
                f"{names.count(name)} among {sorted(names)[:10]}."
            )
        size = archive.getinfo(name).file_size
        if size > largest:
            raise ValueError(
                f"Expected `{name}` in {path} to have at most {largest:,} bytes, got {size:,}."
            )


def _parse_text(path: Path, content: bytes) -> dict[str, Any]:
    try:
        text = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected `data` in {path} to be JSON, got: {error}.") from error
    if not isinstance(text, dict):
        raise ValueError(f"Expected `data` in {path} to be a JSON object, got {type(text)}.")
    return text


def _read_tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    where = f"`policy.pth` in {path}"
    _check_records(where, content)
    try:
        tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, EOFError) as error:
        raise ValueError(
            f"Expected {where} to hold tensors alone, got: {_reason(error)}"
        ) from error
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected {where} to hold named tensors, got {type(tensors).__name__}.")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            raise ValueError(
                f"Expected {where} to hold dense tensors, got {type(tensor).__name__} at {name!r}."
            )
        # A broadcast element can claim any shape, and a copy of it would fill the memory.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(
                f"Expected {name!r} of {where} to have as many elements as its shape says, got "
                f"shape {tuple(tensor.shape)} on {tensor.untyped_storage().nbytes():,} bytes."
            )
    return {str(name): tensor for name, tensor in tensors.items()}


def _reason(error: Exception) -> str:
    """Return the line of torch's long message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    return next((line for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0])


def _check_records(where: str, content: bytes) -> None:
    """Raise unless `content` is torch's zip format, unpacked no larger than packed."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(record.file_size for record in archive.infolist())
    except zipfile.BadZipFile as error:
        raise ValueError(f"Expected {where} in torch's zip format, got: {error}.") from error
    if unpacked > len(content):
        raise ValueError(
            f"Expected {where} to be stored without compression, as torch does, got {unpacked:,} "
            f"bytes packed into {len(content):,}."
        )
