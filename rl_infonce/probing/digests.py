"""Digests of frames, by which equal ones are found in several parts of a data set."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_infonce.probing.arrays import as_array, as_observations

_FRAMES_PER_READ = 256  # 8.6 MB of 210x160 screens


def frame_digests(observations: Any) -> npt.NDArray[np.uint64]:
    """Hash the bytes of each observation (64 bits of BLAKE2b).

    Two of 50,000 different frames share a digest with a probability of 1e-10.

    Args:
        observations: K observations, as in `LabelledObservations`; read in blocks.

    Returns:
        Digests [K].
    """
    observations = as_observations(observations)
    digests = np.empty(len(observations), np.uint64)
    for start in range(0, len(digests), _FRAMES_PER_READ):
        rows = np.arange(start, min(start + _FRAMES_PER_READ, len(digests)))
        for row, frame in zip(rows, as_array(observations[rows]), strict=True):
            digest = hashlib.blake2b(frame.tobytes(), digest_size=8).digest()
            digests[row] = int.from_bytes(digest, "little")
    return digests
