"""One rank of distributed.py: trains objectives on noise and keeps what it saw.

python -m torch.distributed.run --standalone --nproc-per-node 2 experiments/distributed_rank.py DIR
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import (
    OBJECTIVES,
    Budget,
    EpisodeFrames,
    PretrainingSettings,
    Progress,
    hold_out_episodes,
    make_objective,
    pretrain,
)
from rl_infonce.pretraining.ranks import Ranks, checksum, join_ranks

PAINTERS = ("vae", "pixel_pred")
N_EPISODES, EPISODE_LENGTH = 12, 110  # cpc looks at 100 frames
BATCH_SIZE = 8
SHAPES = {"stdim": (1, 210, 160), "nature": (1, 84, 84)}


def parts(encoder: str) -> tuple[EpisodeFrames, EpisodeFrames]:
    """Return frames of noise with one label, to learn from and held out."""
    rng = np.random.default_rng(0)
    rows = np.arange(N_EPISODES * EPISODE_LENGTH)
    images = rng.integers(0, 256, (len(rows), *SHAPES[encoder]), dtype=np.uint8)
    labels = {"x": rng.integers(0, 256, len(rows))}
    ids = rows // EPISODE_LENGTH
    train, held_out = (
        EpisodeFrames(images, ids, own, labels) for own in hold_out_episodes(ids, rng)
    )
    return train, held_out


def train(
    name: str, precision: str, n_steps: int, encoder: str, n_parts: int, *, smooth: bool
) -> dict[str, Any]:
    """Return losses of every step, gradients of the first and the last, and the last weights."""
    generator = torch.Generator().manual_seed(0)
    network: STDIMEncoder | PixelEncoder = (
        STDIMEncoder(generator)
        if encoder == "stdim"
        else PixelEncoder(SHAPES[encoder], 64, generator=generator)
    )
    objective = make_objective(name, network, generator, variables=("x",))
    if smooth:
        _smooth(objective)
    batch_size = BATCH_SIZE // 2 if name == "cpc" else BATCH_SIZE
    settings = PretrainingSettings(
        batch_size=batch_size,
        micro_batch_size=batch_size // n_parts,
        precision=precision,
        n_validation_frames=1,
        patience=n_steps,
    )
    seen: dict[str, Any] = {"gradients": [], "seconds": []}

    def keep(progress: Progress) -> None:
        seen["seconds"].append(progress.step_seconds - sum(seen["seconds"]))
        if progress.step in (1, n_steps):
            of_step = {
                k: p.grad.clone() for k, p in objective.named_parameters() if p.grad is not None
            }
            seen["gradients"].append(of_step)
        if progress.step == n_steps:
            seen["weights"] = {k: tensor.clone() for k, tensor in objective.state_dict().items()}

    progress = pretrain(
        objective, *parts(encoder), Budget(n_steps=n_steps), settings, on_progress=keep
    )
    for part in ("train", "validation"):
        seen[f"{part}_losses"] = [each[f"{part}_loss"] for each in progress.history]
    seen["checksum"] = checksum(seen["weights"].values())
    return seen


def _smooth(network: nn.Module) -> None:
    """Replace every ReLU, whose gradient jumps where rounding moves an input across 0."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.GELU())


def main() -> None:
    """Train all, and leave a file for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES)
    parser.add_argument("--precisions", nargs="+", default=("fp32", "bf16"))
    parser.add_argument("--n-steps", type=int, default=6)
    parser.add_argument(
        "--encoder",
        choices=tuple(SHAPES),
        default="stdim",
        help="encoder of the objectives that paint no frames",
    )
    parser.add_argument(
        "--n-parts", type=int, default=1, help="number of parts of a batch, encoded in turn"
    )
    parser.add_argument("--smooth", action="store_true", help="replace ReLUs, which have a kink")
    arguments = parser.parse_args()
    if os.environ["WORLD_SIZE"] != "1":
        join_ranks("gloo", timedelta(minutes=5))
    rank = Ranks.here().rank
    for name in arguments.objectives:
        encoder = "stdim" if name in PAINTERS else arguments.encoder
        for precision in arguments.precisions:
            seen = train(
                name,
                precision,
                arguments.n_steps,
                encoder,
                arguments.n_parts,
                smooth=arguments.smooth,
            )
            if rank:  # a sum tells whether its weights are the first one's
                seen = {"checksum": seen["checksum"]}
            torch.save(seen, arguments.folder / f"{name}-{precision}-{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
