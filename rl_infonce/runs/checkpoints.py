"""Checkpoints of a run: each is a folder with a manifest, either whole or absent."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_infonce.files.digests import difference, sha256_of
from rl_infonce.files.durable import new_folder, remove_partial, sync_folder, write_bytes
from rl_infonce.files.json_text import read_json

MANIFEST = "MANIFEST.json"
SEAL = "MANIFEST.sha256"
SHARED = "replay"
"""Name of the folder beside the checkpoints for files that several of them use."""
FORMAT_VERSION = 1
# Names that ReplayShards writes, whole or partial; all other files belong to somebody else.
_SHARED_FILE = re.compile(r".+-\d{6}-[0-9a-f]{16}\.npy")
_KINDS: dict[str, type] = {"step": int, "files": dict, "shared": dict, "about": dict}


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint is missing, cut short, changed, or has an unknown format."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are what its manifest says; its writer noted `about`."""

    path: Path
    step: int
    about: Mapping[str, Any]


def write_checkpoint(
    folder: Path,
    step: int,
    files: Mapping[str, bytes],
    about: Mapping[str, Any],
    *,
    shared: Mapping[str, str] | None = None,
) -> Path:
    """Write a checkpoint, which is whole or absent at every moment, and return its folder.

    Files, then the manifest with their SHA-256, its own SHA-256, and the folder are forced to
    the disk before the folder gets its name. A checkpoint of the same step is replaced.
    `shared` has the SHA-256 of files in `SHARED`, by path below `folder`, that are on the disk
    already.
    """
    if not folder.is_dir():
        folder.mkdir(parents=True)
        sync_folder(folder.parent)
    path = folder / _name(step)
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "about": dict(about),
        "files": {
            name: {"sha256": sha256_of(content), "bytes": len(content)}
            for name, content in files.items()
        },
        "shared": {
            name: {"sha256": digest, "bytes": (folder / name).stat().st_size}
            for name, digest in (shared or {}).items()
        },
    }
    with new_folder(path) as partial:
        for name, content in files.items():
            write_bytes(partial / name, content)
        text = json.dumps(manifest, indent=1, allow_nan=False).encode()
        write_bytes(partial / MANIFEST, text)
        write_bytes(partial / SEAL, seal_of(text))
    return path


def seal_of(manifest: bytes) -> bytes:
    """Return the checksum file of a manifest, as `sha256sum --check` reads it."""
    return f"{sha256_of(manifest)}  {MANIFEST}\n".encode()


def checkpoints(folder: Path) -> list[Path]:
    """Return the folders of all checkpoints, the newest first."""
    return sorted(each for each in folder.glob("step_*") if _step_of(each) is not None)[::-1]


def read_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint; DamagedCheckpointError names a file that differs from the manifest."""
    manifest = _read_manifest(path)
    for name, expected in manifest["files"].items():
        _check_file(path / name, expected)
    for name, expected in manifest["shared"].items():
        _check_file(path.parent / name, expected)
    return Checkpoint(path, manifest["step"], manifest["about"])


def latest_checkpoint(folder: Path, *, fall_back: bool = False) -> Checkpoint:
    """Return the newest checkpoint, or FileNotFoundError without any.

    With `fall_back`, damaged checkpoints are passed over until none is left.
    """
    found = checkpoints(folder)
    if not found:
        raise FileNotFoundError(f"Expected a checkpoint in {folder}, got none.")
    reasons = []
    for path in found if fall_back else found[:1]:
        try:
            return read_checkpoint(path)
        except DamagedCheckpointError as error:
            reasons.append(str(error))
    if not fall_back and found[1:]:
        reasons.append("The checkpoint before it is tried with --fall-back (`fall_back=True`).")
    raise DamagedCheckpointError(" ".join(reasons))


def prune_checkpoints(folder: Path, keep: int, newest: Path | None = None) -> None:
    """Remove old checkpoints, what dead writers left, and shards that no checkpoint names.

    The `keep` newest checkpoints stay, and all other files; links are not followed. Where `newest`
    was written last, those of later steps are removed also: they are of an earlier count of steps,
    or were damaged and passed over.
    """
    remove_partial(folder)
    found = checkpoints(folder)
    kept = set((found if newest is None else found[found.index(newest) :])[:keep])
    for path in found:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
    _remove_unshared(folder, kept)


def _remove_unshared(folder: Path, kept: Iterable[Path]) -> None:
    """Remove the shared files that no checkpoint names; nothing if a manifest is unreadable."""
    shared = folder / SHARED
    if shared.is_symlink() or not shared.is_dir():
        return
    remove_partial(shared)
    try:
        named = {folder / name for path in kept for name in _read_manifest(path)["shared"]}
    except (DamagedCheckpointError, OSError):
        return
    for path in shared.iterdir():
        if _SHARED_FILE.fullmatch(path.name) and path not in named:
            path.unlink(missing_ok=True)


def newest_step(folder: Path) -> int:
    """Return the largest step of a checkpoint in a folder, and 0 without any."""
    return max((_step_of(path) or 0 for path in checkpoints(folder)), default=0)


def _step_of(path: Path) -> int | None:
    number = path.name.removeprefix("step_")
    is_ours = number.isdecimal() and path.name == _name(int(number))
    return int(number) if is_ours else None


def _name(step: int) -> str:
    return f"step_{step:012d}"


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    manifest = _parse_manifest(file)
    _check_seal(path)
    if manifest.get("format_version") != FORMAT_VERSION:
        raise DamagedCheckpointError(
            f"Expected {file} in format {FORMAT_VERSION}, got {manifest.get('format_version')!r}. "
            "Update rl_infonce."
        )
    for key, kind in _KINDS.items():
        if type(manifest.get(key)) is not kind:
            raise DamagedCheckpointError(f"Expected `{key}` of type {kind.__name__} in {file}.")
    if manifest["step"] != _step_of(path):
        raise DamagedCheckpointError(
            f"Expected the step of {path.name} in {file}, got {manifest['step']}."
        )
    for name in (*manifest["files"], *manifest["shared"]):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DamagedCheckpointError(f"Expected names inside its folder in {file}: {name!r}.")
    return manifest


def _parse_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = read_json(file)
    except FileNotFoundError as error:
        raise DamagedCheckpointError(str(error)) from None
    except ValueError as error:
        raise DamagedCheckpointError(f"Expected a manifest in {file}, got: {error}.") from error
    if not isinstance(manifest, dict):
        raise DamagedCheckpointError(f"Expected a JSON object in {file}, got another value.")
    return manifest


def _check_seal(path: Path) -> None:
    """Raise unless the manifest, which vouches for all files, is byte for byte what was written."""
    if not (path / SEAL).is_file():
        raise DamagedCheckpointError(f"Expected a file at {path / SEAL}, got none.")
    expected = seal_of((path / MANIFEST).read_bytes())
    with (path / SEAL).open("rb") as file:
        found = file.read(len(expected) + 1)
    if found != expected:
        raise DamagedCheckpointError(
            f"Expected {path / MANIFEST} with the SHA-256 in {path / SEAL}, got {expected[:64]!r}."
        )


def _check_file(path: Path, expected: Any) -> None:
    if not isinstance(expected, dict) or expected.keys() != {"sha256", "bytes"}:
        raise DamagedCheckpointError(f"Expected SHA-256 and size of {path}, got {expected!r}.")
    if found := difference(path, expected["bytes"], expected["sha256"]):
        raise DamagedCheckpointError(found)
