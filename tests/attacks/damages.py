"""What happens to files: cut, flipped, emptied, lengthened, lost and swapped, always alike."""

import itertools
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

_N_FLIPS = 16
_KILOBYTE = 1024
_MOST_PLACES_OF_A_SMALL_FILE = 21

Files = Mapping[str, bytes]


class Damage(NamedTuple):
    """One damage.

    Attributes:
        kind: "cut", "flip", "longer", "inserted", "gone", "swapped" or "foreign".
        where: The file and the place in it.
        changed: File to content; None is gone.
    """

    kind: str
    where: str
    changed: dict[str, bytes | None]


def damages(files: Files, foreign: bytes) -> Iterator[Damage]:
    """Yield the damages of some files.

    Args:
        files: Good ones by name.
        foreign: A good file of another format.
    """
    for name, content in files.items():
        for place in _cuts(len(content)):
            yield Damage("cut", f"{name} at {place}", {name: content[:place]})
        for bit in _bits(name, len(content)):
            yield Damage("flip", f"{name} in bit {bit}", {name: flipped(content, bit)})
        for extra in (b"\0", b" ", b"\n", b"x" * 1000):
            yield Damage("longer", f"{name} by {extra[:5]!r}", {name: content + extra})
        middle = len(content) // 2
        yield Damage("inserted", name, {name: content[:middle] + b"\0" + content[middle:]})
        yield Damage("inserted", f"{name} at 0", {name: b"x" + content})
        yield Damage("gone", name, {name: None})
        yield Damage("foreign", name, {name: foreign})
    for one, other in itertools.pairwise(files):
        if files[one] != files[other]:
            exchanged: dict[str, bytes | None] = {one: files[other], other: files[one]}
            yield Damage("swapped", f"{one} and {other}", exchanged)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _cuts(size: int) -> list[int]:
    """Return every kilobyte, of small files some twenty places and the last byte."""
    places = range(0, size, _KILOBYTE)
    if len(places) >= _MOST_PLACES_OF_A_SMALL_FILE:
        return [*places, size - 1]
    return sorted({*np.linspace(0, size - 1, _MOST_PLACES_OF_A_SMALL_FILE).astype(int).tolist()})


def _bits(name: str, size: int) -> list[int]:
    """Return places all over a file, and more in its first kilobyte and its last."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    n_bits, n_edge = size * 8, min(size, _KILOBYTE) * 8
    places = [
        *rng.integers(0, n_bits, _N_FLIPS).tolist(),
        *rng.integers(0, n_edge, _N_FLIPS // 2).tolist(),
        *(n_bits - 1 - rng.integers(0, n_edge, _N_FLIPS // 2)).tolist(),
    ]
    return sorted({int(place) for place in places})
