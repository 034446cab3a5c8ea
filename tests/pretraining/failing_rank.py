"""One of two ranks, of which the second fails, for test_distributed.py; forked.py runs it."""

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import (
    Budget,
    EpisodeFrames,
    PretrainingLoss,
    PretrainingObjective,
    PretrainingSettings,
    Progress,
    make_objective,
    pretrain,
)
from rl_infonce.pretraining.ranks import Ranks, process_group

SETTINGS = PretrainingSettings(batch_size=4, precision="fp32", n_validation_frames=1, patience=99)
_NAN = "FloatingPointError: Expected a finite gradient, got a loss of nan in step 2"
_DIFFERENT = "ValueError: Expected the same {} on every rank, got on rank 0 others than on [1]"
TOGETHER = {
    "nan weights, contrasted": _NAN,
    "nan weights": _NAN,
    "nan validation": "FloatingPointError: Expected a finite validation loss, got nan after step 2",
    "weights": _DIFFERENT.format("weights"),
    "settings": _DIFFERENT.format("settings"),
    "frames": _DIFFERENT.format("rows and episodes of frames"),
    "checkpoint": _DIFFERENT.format("number of steps done"),
}
"""What both ranks must say when the second has something of its own."""


def frames(n_frames: int, shape: tuple[int, int, int] = (1, 84, 84)) -> EpisodeFrames:
    """Return an episode of noise."""
    images = np.random.default_rng(0).integers(0, 256, (n_frames, *shape), dtype=np.uint8)
    rows = np.arange(n_frames)
    return EpisodeFrames(images, np.zeros(n_frames, np.int64), rows, {"x": rows % 4})


def objective(name: str = "infonce", seed: int = 0) -> PretrainingObjective:
    """Return a small objective; of screens for "vae"."""
    generator = torch.Generator().manual_seed(seed)
    encoder = (
        STDIMEncoder(generator)
        if name == "vae"
        else PixelEncoder((1, 84, 84), 16, generator=generator)
    )
    return make_objective(name, encoder, generator, variables=("x",))


class _Unreadable:
    """Frames on a disk that fails."""

    shape = (40, 1, 84, 84)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, _: Any) -> Any:
        raise OSError("the disk is gone")


def train(
    trained: PretrainingObjective, seed: int = 0, data: EpisodeFrames | None = None, **more: Any
) -> None:
    """Take four steps."""
    held_out, settings = frames(40), replace(SETTINGS, seed=seed)
    pretrain(trained, data or held_out, held_out, Budget(n_steps=4), settings, **more)


def differ(name: str, rank: int, folder: Path) -> None:
    """Train with something of the second rank's own."""
    own = folder / str(rank)
    own.mkdir(exist_ok=True)
    if name.startswith("nan weights"):
        trained = objective("infonce" if "contrasted" in name else "supervised")
        train(trained, on_progress=lambda p: poison(trained) if rank and p.step == 2 else None)
    elif name == "nan validation":
        losses = iter([1.0, math.nan])
        told = lambda *_, **__: PretrainingLoss(torch.tensor(next(losses)), torch.tensor(0.0))  # noqa: E731
        target = "rl_infonce.pretraining.trainer.evaluate"
        with patch(target, told) if rank else contextlib.nullcontext():
            train(objective("supervised"))
    elif name == "weights":
        train(objective(seed=rank))
    elif name == "settings":
        train(objective(), seed=rank)
    elif name == "frames":
        train(objective(), data=frames(40 - rank))
    else:
        for _ in range(2):  # each has a folder of its own, and only the first writes
            train(objective(), folder=own)


def poison(trained: PretrainingObjective) -> PretrainingObjective:
    """Break the weights."""
    next(trained.encoder.parameters()).data.fill_(torch.nan)
    return trained


def lose(scenario: str, rank: int) -> None:
    """Train until the second rank raises an error, dies or hangs."""

    def stop(progress: Progress) -> None:
        if rank == 0 or progress.step != 2:
            return
        if scenario == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif scenario == "hangs":
            time.sleep(10)

    is_broken = rank == 1 and scenario == "raises"
    data = replace(frames(40), observations=_Unreadable()) if is_broken else None
    train(objective(), data=data, on_progress=stop)


def attempt(call: Callable[[], None]) -> tuple[str, str, float]:
    """Return the error that a call ends with, and the seconds until then."""
    began = time.perf_counter()
    try:
        call()
    except (ArithmeticError, ValueError, OSError) as error:
        return type(error).__name__, str(error), time.perf_counter() - began
    return "none", "", time.perf_counter() - began


def main(folder: Path, scenario: str) -> None:
    """Join the other, run, and leave what happened in the folder."""
    found: dict[str, Any] = {}
    wait = timedelta(seconds=4 if scenario == "hangs" else 60)
    with patch("rl_infonce.pretraining.ranks._WAIT", wait), process_group(torch.device("cpu")):
        rank = Ranks.here().rank
        if scenario == "together":
            for name in TOGETHER:
                found[name] = attempt(partial(differ, name, rank, folder))[:2]
        else:
            found[scenario] = attempt(partial(lose, scenario, rank))
        (folder / f"{rank}.json").write_text(json.dumps(found))
