"""Digests of frames, by which equal ones are found in several parts of a data set."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

_FRAMES_PER_READ = 256  # 8.6 MB of 210x160 screens


def frame_digests(observations: Any) -> npt.NDArray[np.uint64]:
    """Hash the bytes of each observation (64 bits of BLAKE2b).

    Two of 50,000 different frames share a digest with a probability of 1e-10.

    Args:
        observations: K arrays of one shape, sliceable and with a length; read in blocks.

    Returns:
        Digests [K].
    """
    digests = np.empty(len(observations), np.uint64)
    for start in range(0, len(digests), _FRAMES_PER_READ):
        rows = np.arange(start, min(start + _FRAMES_PER_READ, len(digests)))
        for row, frame in zip(rows, np.asarray(observations[rows]), strict=True):
            digest = hashlib.blake2b(frame.tobytes(), digest_size=8).digest()
            digests[row] = int.from_bytes(digest, "little")
    return digests
