"""SHA-256 of files, and whether files are what they were."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 2**20


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def difference(path: Path, n_bytes: int, sha256: str, *, verify: bool = True) -> str:
    """Return in words how a file differs from what it was; "" if it does not.

    The size is compared first, and without `verify` nothing else.
    """
    if not path.is_file():
        return f"Expected a file at {path}, got none."
    size = path.stat().st_size
    if size != n_bytes:
        return f"Expected {path} with {n_bytes} bytes (SHA-256 {sha256}), got {size} bytes."
    if verify and (found := sha256_of_file(path)) != sha256:
        return f"Expected {path} with SHA-256 {sha256}, got {found}."
    return ""
