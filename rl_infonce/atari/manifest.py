"""The manifest of a collection: FOLDER/manifest.json, its settings and its finished shards."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_infonce.atari.games import games
from rl_infonce.atari.shards import columns, shard_folder
from rl_infonce.files.durable import replace_bytes
from rl_infonce.files.json_text import read_json

FORMAT = "rl_infonce labelled frames"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"

MOST_SHARDS = 10**4  # a manifest that lists more may be malicious and fill the memory

_KINDS: dict[str, type] = {
    "n_steps": int,
    "n_shards": int,
    "seed": int,
    "views": list,
    "policy": str,
    "ale_py": str,
}


def folder_path(name: str, folder: str | os.PathLike[str]) -> Path:
    """Return a folder that a caller named, with "~" expanded; errors call it `name`."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"Expected `{name}` to be a path, got {folder!r}.")
    return Path(folder).expanduser()


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest in one move, so that a reader never sees half of it."""
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, **manifest}
    # Without a newline at the end, the loss of any byte is noticed.
    replace_bytes(folder / MANIFEST, json.dumps(content, indent=1).encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder, or raise if it has none that this version can read."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected collected frames in `folder`, but there is no {path}. Collect some with "
            "rl_infonce.atari.collect."
        )
    try:
        manifest = read_json(path)
        found = (manifest["format"], manifest["format_version"])
        if found == (FORMAT, FORMAT_VERSION):
            _check(manifest)
            return dict(manifest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Expected {path} to be a manifest of {FORMAT!r}: {error!r}.") from error
    raise ValueError(
        f"Expected {path} to have {FORMAT!r} version {FORMAT_VERSION}, got {found[0]!r} version "
        f"{found[1]!r}. Delete {folder}, or collect into another folder."
    )


def existing_shards(folder: Path, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the shards that a manifest lists and the folder holds."""
    return [s for s in manifest["shards"] if shard_folder(folder, s["index"]).exists()]


def _check(manifest: Mapping[str, Any]) -> None:
    """Raise an error of any kind unless a manifest, which anyone may have written, is reliable."""
    settings, shards = manifest["settings"], manifest["shards"]
    _demand(settings["game"] in games(), "settings.game")
    for name, kind in _KINDS.items():
        _demand(type(settings[name]) is kind, f"settings.{name}")
    _demand(0 < settings["n_shards"] <= MOST_SHARDS, "settings.n_shards")
    _demand(all(type(size) is int for size in settings["screen_shape"]), "screen_shape")
    content = columns(settings)
    indices = [shard["index"] for shard in shards]
    _demand(len(set(indices)) == len(indices), "distinct shards")
    for shard in shards:
        index = shard["index"]
        _demand(type(index) is int and index in range(settings["n_shards"]), "shard.index")
        _demand(type(shard["rows"]) is int and shard["rows"] > 0, "shard.rows")
        _demand(set(shard["files"]) == {f"{name}.npy" for name in content}, "shard.files")
        for file in shard["files"].values():
            _demand(type(file["bytes"]) is int and type(file["sha256"]) is str, "file")


def _demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise ValueError(what)
