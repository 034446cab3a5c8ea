"""Batches of frames on the device, the next one loaded while the present one is used."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from rl_infonce.checks import check_uint8
from rl_infonce.pretraining.base_objective import FrameBatch, PretrainingObjective
from rl_infonce.pretraining.episode_frames import EpisodeFrames, IntArray
from rl_infonce.pretraining.ranks import Ranks


def batch_of_rows(
    frames: EpisodeFrames, rows: IntArray, seed: int, ranks: Ranks, device: torch.device
) -> FrameBatch:
    """Return this rank's share of the samples at rows [B, L]; B is a multiple of the ranks."""
    share = len(rows) // ranks.n_ranks
    first = ranks.rank * share
    own = rows[first : first + share]
    images = frames.observations[own.ravel()]
    check_uint8("observations", images)
    labels = {
        name: torch.as_tensor(np.asarray(values)[own[:, 0]].astype(np.int64)).to(device)
        for name, values in frames.labels.items()
    }
    tensor = torch.as_tensor(images).view(*own.shape, *images.shape[1:]).to(device)
    return FrameBatch(tensor, labels, seed, first, len(rows))


def training_batches(
    objective: PretrainingObjective,
    frames: EpisodeFrames,
    *,
    batch_size: int,
    seed: int,
    first_step: int,
    ranks: Ranks,
    device: torch.device,
) -> Iterator[tuple[IntArray, FrameBatch]]:
    """Yield the rows and the batch of every step; both depend on seed and step alone.

    Close the generator when it is not needed any more: it loads in a thread.
    """

    def load(step: int) -> tuple[IntArray, FrameBatch]:
        rng = np.random.default_rng([seed, step])
        rows = objective.draw(frames, batch_size, rng)
        return rows, batch_of_rows(frames, rows, int(rng.integers(2**31)), ranks, device)

    with ThreadPoolExecutor(1, "load") as loader:
        step = first_step
        coming = loader.submit(load, step)
        while True:
            loaded = coming.result()
            step += 1
            coming = loader.submit(load, step)
            yield loaded
