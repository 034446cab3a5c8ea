"""Files that someone made to harm, harmless but for the directory that a payload would make."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rl_infonce.runs.checkpoints import MANIFEST, SEAL, checkpoints, seal_of


class Payload:
    """Makes a directory when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def payloads(mark: Path) -> dict[str, bytes]:
    """Return a payload in every wrapping that some loader would open."""
    array = np.full(3, Payload(mark), dtype=object)
    return {
        "pickle": pickle.dumps(Payload(mark)),
        "pickle, protocol 0": pickle.dumps(Payload(mark), protocol=0),
        "torch": torch_file({"x": Payload(mark)}),
        "torch, legacy": torch_file({"x": Payload(mark)}, _use_new_zipfile_serialization=False),
        "npy": _written(lambda file: np.save(file, array, allow_pickle=True)),
        "npz": _written(lambda file: np.savez(file, array, allow_pickle=True)),
        "zip of a zip": zip_file({"policy.pth": torch_file(Payload(mark))}),
    }


def torch_file(content: Any, **settings: Any) -> bytes:
    return _written(lambda file: torch.save(content, file, **settings))


def _written(write: Any) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


# -- containers -------------------------------------------------------------------------------

Members = Mapping[str, bytes]


def zip_file(
    members: Members | Iterable[tuple[str | zipfile.ZipInfo, bytes]], compression: int = 0
) -> bytes:
    pairs = members.items() if isinstance(members, Mapping) else members
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in pairs:
            archive.writestr(name, content, compression)
    return file.getvalue()


def members_of(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class SoundModel(NamedTuple):
    """The members of a sound model, and where one that is changed is written."""

    members: dict[str, bytes]
    path: Path

    def write(self, changed: Members, compression: int = 0) -> Path:
        """Write a model with some members changed, and return its path."""
        self.path.write_bytes(zip_file({**self.members, **changed}, compression))
        return self.path

    def records(self) -> dict[str, bytes]:
        """Return what the file of its weights holds."""
        return members_of(self.members["policy.pth"])


PICKLE = "archive/data.pkl"


def with_declared_size(content: bytes, member: int, size: int) -> bytes:
    """Return a zip file whose central directory claims another unpacked size of a member."""
    changed = bytearray(content)
    (start,) = struct.unpack("<L", content[-6:-2])
    entry = start - 1
    for _ in range(member + 1):
        entry = content.index(b"PK\x01\x02", entry + 1)
    changed[entry + 24 : entry + 28] = struct.pack("<I", size)
    return bytes(changed)


def safetensors_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def parts_of_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def npy_file(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header.encode("latin1") + data


def pickled(*opcodes: bytes) -> bytes:
    return b"\x80\x02" + b"".join(opcodes) + b"."


# -- digests that agree -----------------------------------------------------------------------


def forge(folder: Path, file: str, content: bytes) -> None:
    """Write a file of any format, and make the digests beside it agree, as an attacker would."""
    (folder / file).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    if file.startswith("shard_"):
        shard, _, name = file.partition("/")
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["shards"][int(shard.removeprefix("shard_"))]["files"][name] = entry
        (folder / "manifest.json").write_text(json.dumps(manifest))
    elif (newest := next(iter(checkpoints(folder)), None)) is not None:
        _vouch(newest, file, entry)


def _vouch(checkpoint: Path, file: str, entry: dict[str, Any]) -> None:
    path = checkpoint / MANIFEST
    if not file.endswith(MANIFEST):
        manifest = json.loads(path.read_text())
        own = file.removeprefix(f"{checkpoint.name}/")
        for group, name in (("files", own), ("shared", file)):
            if name in manifest[group]:
                manifest[group][name] = entry
        path.write_text(json.dumps(manifest))
    (checkpoint / SEAL).write_bytes(seal_of(path.read_bytes()))


# -- memory -----------------------------------------------------------------------------------


@contextlib.contextmanager
def memory_bound(n_bytes: int) -> Iterator[None]:
    """Fail if this process ever took so much more inside the block; everything counts, torch too.

    The system keeps the peak and lets it be forgotten, which costs nothing; Linux alone does.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("this system does not say how much memory a process took at most")
    before = _status("VmRSS")
    yield
    grown = _status("VmHWM") - before
    assert grown < n_bytes, f"{grown / 2**20:.0f} MB more than before"


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(name))
    return int(line.split()[1]) * 1024
