"""Read an SB3 model file without executing anything in it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_infonce.agents.tensor_pickle import check_tensor_pickle
from rl_infonce.files.json_text import parse_json

_LARGEST = {"data": 2**26, "policy.pth": 2**30}
"""Largest unpacked size of each member in bytes. NatureCNN's policies take some 10 MB; `data` holds
the last observation of every environment, 40 kB for an Atari game."""

_LARGEST_BESIDE = 2**24

_FREELY_UNPACKED, _MOST_TIMES_SMALLER = 2**24, 20
"""A member of more bytes may hardly be compressed, as weights are; SB3 does not compress at all."""

_OF_NUMBERS = (RuntimeError, ValueError, OverflowError, OSError)
"""What zipfile raises for impossible offsets and versions."""

_OF_TORCH = (
    *(pickle.UnpicklingError, EOFError, RuntimeError, ValueError, TypeError),
    *(LookupError, AttributeError, AssertionError, ArithmeticError),
)
"""What torch's unpickler raises for pickles that `torch.save` never writes."""


def mapping_of(entry: Any) -> dict[str, Any]:
    """Return an entry of `data` if it is a mapping, else an empty mapping."""
    return dict(entry) if isinstance(entry, dict) else {}


def class_name(entry: Any) -> str:
    """Return "Box" for "<class 'gymnasium.spaces.box.Box'>", and any other text as it is."""
    return re.sub(r"^<class '(?:\w+\.)*(\w+)'>$", r"\1", str(entry))


def read_model_zip(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the text and the policy's named tensors in a file that SB3's `model.save` wrote.

    SB3 keeps pickles in such a file, and `PPO.load` executes them. This function does not: it
    parses the JSON in `data`, and reads `policy.pth` with torch's restricted unpickler, which
    builds nothing but tensors. Sizes are compared with limits before anything is unpacked; what
    is damaged or looks malicious raises ValueError.
    """
    path = Path(path)
    with _opened(path) as archive, _damage_named(path):
        text, weights = (_read_member(archive, name) for name in _LARGEST)
    return _parse_text(path, text), _read_tensors(path, weights)


def read_beside_weights(path: Path, name: str) -> tuple[Any, bytes] | None:
    """Return the JSON in a further member of a model's file, and its packed weights.

    None if there is no such member.
    """
    with _opened(path) as archive:
        members = [member for member in archive.infolist() if member.filename == name]
        if len(members) != 1:
            return None
        _check_size(f"`{name}` in {path}", members[0], _LARGEST_BESIDE)
        with _damage_named(path):
            text, weights = (_read_member(archive, each) for each in (name, "policy.pth"))
    try:
        return parse_json(text, most_bytes=_LARGEST_BESIDE), weights
    except ValueError as error:
        raise ValueError(
            f"Expected `{name}` in {path} to be JSON, got: {error}. Take the file as it was saved."
        ) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Yield a model's file after comparing names and sizes of its members with what is allowed."""
    if not path.is_file():
        raise FileNotFoundError(f"Expected a saved SB3 model at {path}, got no such file.")
    with contextlib.ExitStack() as opened:
        with _damage_named(path):
            archive = opened.enter_context(zipfile.ZipFile(path))
        _check_members(path, archive)
        yield archive


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, *_OF_NUMBERS) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # not a negative offset
            raise
        raise ValueError(
            f"Expected {path} to be a whole zip file as SB3's model.save writes it, got: {error}."
        ) from error


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Unpack no more than the declared size, which may lie; zipfile's own `read` unpacks all."""
    with archive.open(name) as member:
        return member.read(archive.getinfo(name).file_size)


def _check_members(path: Path, archive: zipfile.ZipFile) -> None:
    names = [member.filename for member in archive.infolist()]
    for name in names:
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or name.startswith(("/", "\\")) or ":" in name:
            raise ValueError(f"Expected plain member names in {path}, got {name!r}.")
    for name, largest in _LARGEST.items():
        if names.count(name) != 1:
            raise ValueError(
                f"Expected {path} to hold one `{name}`, as whole files of model.save do, got "
                f"{names.count(name)} among the members {sorted(names)[:10]}."
            )
        _check_size(f"`{name}` in {path}", archive.getinfo(name), largest)


def _check_size(where: str, member: zipfile.ZipInfo, largest: int) -> None:
    size, packed = member.file_size, member.compress_size
    if size > largest:
        raise ValueError(f"Expected {where} to have at most {largest:,} bytes, got {size:,}.")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(
            f"Expected {where} to be stored or deflated, got compression {member.compress_type}."
        )
    if size > max(_FREELY_UNPACKED, _MOST_TIMES_SMALLER * packed):
        raise ValueError(
            f"Expected {where} packed as weights are, at most {_MOST_TIMES_SMALLER} times smaller, "
            f"got {size:,} bytes packed into {packed:,}."
        )


def _parse_text(path: Path, content: bytes) -> dict[str, Any]:
    try:
        text = parse_json(content, most_bytes=_LARGEST["data"], allow_nan=True)
    except ValueError as error:
        raise ValueError(f"Expected `data` in {path} to be JSON, got: {error}.") from error
    if not isinstance(text, dict):
        raise ValueError(f"Expected `data` in {path} to be a JSON object, got {type(text)}.")
    return text


def _read_tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    where = f"`policy.pth` in {path}"
    records = _checked_records(where, content)
    try:
        tensors = torch.load(_packed(records), map_location="cpu", weights_only=True)
    except _OF_TORCH as error:
        raise ValueError(
            f"Expected {where} to hold nothing but tensors, got: {_reason(error)}"
        ) from error
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected {where} to hold named tensors, got {type(tensors).__name__}.")
    for name, tensor in dict.items(tensors):  # a file can give its OrderedDict other `items`
        if not isinstance(name, str):
            raise ValueError(f"Expected {where} to hold named tensors, got one without a name.")
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
    named = dict(dict.items(tensors))
    _check_storages(where, named, records)
    return named


def _check_storages(
    where: str, tensors: Mapping[str, Tensor], records: Mapping[str, bytes]
) -> None:
    """Raise unless each tensor lies on a record; torch 2.8 believes the size that a pickle says."""
    there = Counter(len(content) for name, content in records.items() if "/data/" in name)
    storages = [tensor.untyped_storage() for tensor in tensors.values()]
    n_bytes = {each.data_ptr(): each.nbytes() for each in storages if each.nbytes()}
    if wrong := Counter(n_bytes.values()) - there:
        raise ValueError(
            f"Expected {where} to hold the numbers of its tensors, got records of "
            f"{sorted(there.elements())[-5:]} bytes for tensors of {sorted(wrong.elements())[-5:]}."
        )


def _reason(error: Exception) -> str:
    """Return the line of torch's long message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    return next((line for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0])


def _checked_records(where: str, content: bytes) -> dict[str, bytes]:
    """Return the records of a file in torch's zip format, uncompressed and of tensors alone."""
    records = _stored_records(where, content)
    pickles = [name for name in records if name.lower().endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError(
            f"Expected {where} to have torch's zip format, got {len(pickles)} data.pkl among "
            f"{len(records)} records."
        )
    try:
        check_tensor_pickle(records[pickles[0]])
    except ValueError as error:
        raise ValueError(f"Expected {where} to hold dense tensors alone, got: {error}.") from error
    return records


def _stored_records(where: str, content: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            unpacked = sum(entry.file_size for entry in entries)
            is_stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            fits = is_stored and unpacked <= len(content)
            records = {entry.filename: archive.read(entry) for entry in entries} if fits else {}
    except (zipfile.BadZipFile, EOFError, *_OF_NUMBERS) as error:
        raise ValueError(f"Expected {where} to have torch's zip format, got: {error}.") from error
    if not fits:
        raise ValueError(
            f"Expected {where} to be stored without compression, as torch does, got {unpacked:,} "
            f"bytes packed into {len(content):,}."
        )
    if len(records) != len(entries):
        raise ValueError(
            f"Expected {where} to have torch's zip format, got {len(entries)} records with "
            f"{len(records)} names."
        )
    return records


def _packed(records: dict[str, bytes]) -> io.BytesIO:
    """Pack records anew: torch's own zip reader may find other records in a malicious file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, record in records.items():
            archive.writestr(name, record)
    packed.seek(0)
    return packed
