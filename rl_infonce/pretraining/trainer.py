"""Pretrain an encoder: steps, validation, the best weights, and a run that can be continued."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_infonce.checks import check_choice, check_count, check_number
from rl_infonce.device import arithmetic
from rl_infonce.files.json_text import none_if_nan
from rl_infonce.pretraining.base_objective import FrameBatch, PretrainingLoss, PretrainingObjective
from rl_infonce.pretraining.batches import batch_of_rows, training_batches
from rl_infonce.pretraining.budget import (
    N_VALIDATIONS,
    Budget,
    check_budget,
    has_time_to_validate,
    learning_rate_factor,
    next_validation,
)
from rl_infonce.pretraining.checkpoint import (
    Progress,
    read_checkpoint,
    settings_of_run,
    write_checkpoint,
)
from rl_infonce.pretraining.episode_frames import EpisodeFrames, IntArray
from rl_infonce.pretraining.gradients import average_gradients_, backward, evaluate
from rl_infonce.pretraining.micro_batch import MicroBatch
from rl_infonce.pretraining.ranks import (
    Ranks,
    check_same_on_ranks,
    checksum,
    mean_over_ranks,
    naming_lost_ranks,
)
from rl_infonce.runs.claim import held

CHECKPOINT = "checkpoint.safetensors"
_N_PARTS = 10**4
"""Parts of a budget in seconds, which have a learning rate as steps have."""
_SAVE_SECONDS = 60.0
_VALIDATION_SEED = 2**32 - 1


@dataclass(frozen=True)
class PretrainingSettings:
    """How to train.

    Attributes:
        batch_size: Samples per step, over all ranks, at least 2.
        micro_batch_size: Samples to encode at a time, at least 1; None takes all. The gradient is
            the same but for rounding, and a run goes on with another.
        learning_rate: Learning rate of Adam, > 0; it rises over the first 2 % of the steps and
            falls to 0.
        precision: "bf16" or "fp32", of encoders and of losses that contrast no batch; "auto" is
            bf16 where the device multiplies it in hardware.
        n_validation_frames: Held-out frames per validation, at least 1 and not more than there are;
            in whole batches, at least one. 2,048 are 16 batches of ST-DIM's and one of CPC's 1,600.
        patience: Validations without progress, out of 40, after which a run ends.
        seed: Seed of the batches.

    Raises:
        TypeError: If a number is none, or a count no integer.
        ValueError: If a setting is out of range.
    """

    batch_size: int = 64
    micro_batch_size: int | None = None
    learning_rate: float = 3e-4
    precision: str = "auto"
    n_validation_frames: int = 2048
    patience: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, _plain(value))
        check_count("batch_size", self.batch_size, at_least=2)
        if self.micro_batch_size is not None:
            check_count("micro_batch_size", self.micro_batch_size)
        check_number("learning_rate", self.learning_rate, above=0)
        check_choice("precision", self.precision, ("auto", "bf16", "fp32"))
        check_count("n_validation_frames", self.n_validation_frames)
        check_count("patience", self.patience)
        check_count("seed", self.seed, at_least=0)


def pretrain(
    objective: PretrainingObjective,
    train: EpisodeFrames,
    validation: EpisodeFrames,
    budget: Budget,
    settings: PretrainingSettings,
    *,
    folder: str | os.PathLike[str] | None = None,
    about: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Progress:
    """Train an objective in place; its encoder ends with the weights of the lowest validation loss.

    Batches depend on the seed and the step alone. With a budget in steps or frames, a run that was
    stopped and continued ends on the CPU with the very weights of one that was not, and several
    ranks with those of one, but for rounding; a GPU, which adds in any order, repeats no run to the
    bit. Where torch.distributed has a process group, its ranks share each batch.

    Args:
        objective: What to train, on the device to train on.
        train: Frames to learn from.
        validation: Frames of other episodes.
        budget: Steps, seconds or frames to train for.
        settings: How to train.
        folder: Where `checkpoint.safetensors` goes after every validation and every minute, and
            whence a run is continued; it exists, for all ranks. None keeps nothing.
        about: What else a checkpoint must agree in to be continued, as JSON can hold it.
        on_progress: Called after every step.

    Returns:
        Losses and speeds.

    Raises:
        TypeError: If steps or frames of the budget are no integer, or JSON cannot hold `about`.
        FloatingPointError: If a gradient or a validation loss is not finite; the step and its rows
            are named, and the last checkpoint is kept.
        ValueError: If the budget is not greater than 0, no episode is long enough, there are too
            few frames for a batch, the folder holds a run of other settings or of frames with
            other rows or episodes, or ranks cannot share the batch evenly or differ in settings,
            frames, weights or steps.
        OSError: If the folder cannot be written, or another process trains in it; as
            ConnectionError, if another rank stopped or hangs longer than the process group waits.
        MemoryError: If a GPU's memory does not hold the loss of the batch, which decoders paint
            whole, beside a single sample, or one of several ranks has too little.
    """
    path = None if folder is None else Path(folder)
    with _held(path), naming_lost_ranks():
        run = _Run(objective, train, validation, settings, path, budget, dict(about or {}))
        run.train(on_progress or (lambda _progress: None))
        return run.progress


def _held(folder: Path | None) -> contextlib.AbstractContextManager[object]:
    """Keep other processes out of a folder; those of this run wait for their first rank anyway."""
    if folder is None or Ranks.here().rank > 0:
        return contextlib.nullcontext()
    return held(folder, "trains in it")


class _Run:
    """The tensors of a run and its progress."""

    def __init__(
        self,
        objective: PretrainingObjective,
        train: EpisodeFrames,
        validation: EpisodeFrames,
        settings: PretrainingSettings,
        folder: Path | None,
        budget: Budget,
        about: dict[str, Any],
    ) -> None:
        check_budget(budget)
        budget = Budget(*map(_plain, budget))
        self.objective, self.frames, self.held_out = objective, train, validation
        self.settings, self.budget = settings, budget
        self.path = None if folder is None else folder / CHECKPOINT
        self.device = next(objective.parameters()).device
        self.ranks = Ranks.here()
        share = self.ranks.share_of(settings.batch_size)
        self.n_frames = self._frames_per_sample()
        n_frames = settings.batch_size * self.n_frames
        self.n_steps = budget.steps(n_frames)
        n_held_out = min(settings.n_validation_frames, len(validation.rows))
        self.n_validation_batches = max(n_held_out // n_frames, 1)
        precision = arithmetic(settings.precision, self.device)
        self.half = precision == "bf16"
        if self.half:
            objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.Adam(
            objective.parameters(), lr=settings.learning_rate, eps=1e-5, fused=True
        )
        is_alone = self.ranks.n_ranks == 1
        n_samples = min(settings.micro_batch_size or share, share)
        self.micro_batch = MicroBatch(n_samples, self.optimizer, is_alone=is_alone)
        self.best = _copy(objective.encoder)
        self.progress = Progress(n_validations=N_VALIDATIONS)
        ids = [each for f in (train, validation) for each in (f.rows, f.episode_ids)]
        own = {**asdict(settings), "precision": precision, **budget._asdict()}
        own["frames_checksum"] = checksum(each.astype(np.int64) for each in ids)
        self.about = settings_of_run(about, own)
        if self.path is not None and self.path.exists():
            found = read_checkpoint(self.path, objective, self.optimizer, self.about)
            self.progress, self.best = found
        self._check_ranks()
        self.done = self._share_done()
        if self.progress.step == 0:
            self._plan()

    def _frames_per_sample(self) -> int:
        """Return L, after trying to draw a batch from both parts."""
        for part, frames in (("training", self.frames), ("validation", self.held_out)):
            try:
                n_samples = self.settings.batch_size
                rows = self.objective.draw(frames, n_samples, np.random.default_rng(0))
            except ValueError as error:
                raise ValueError(f"The {part} part is too short. {error}") from error
        return int(rows.shape[1])

    def _check_ranks(self) -> None:
        """Raise, on every rank, if they would train different things."""
        if self.ranks.n_ranks == 1:
            return
        numbers = {
            "rows and episodes of frames": self.about["frames_checksum"],
            "settings": checksum([self.about]),
            "number of steps done": self.progress.step,
            "weights": checksum(self.objective.state_dict().values()),
        }
        check_same_on_ranks(numbers, self.device)

    def train(self, on_progress: Callable[[Progress], object]) -> None:
        """Take all steps that are left, and give the encoder its best weights."""
        progress = self.progress
        self.saved_at = time.perf_counter()
        session = self.saved_at - progress.seconds
        batches = training_batches(
            self.objective,
            self.frames,
            batch_size=self.settings.batch_size,
            seed=self.settings.seed,
            first_step=progress.step,
            ranks=self.ranks,
            device=self.device,
        )
        with contextlib.closing(batches):  # type: ignore[type-var]
            while not self._is_done():
                began = time.perf_counter()
                latest = self._step(*next(batches))
                progress.step_seconds += time.perf_counter() - began
                progress.seconds = time.perf_counter() - session
                self.done = self._share_done()
                if self._must_validate():
                    began = time.perf_counter()
                    self._validate(latest)
                    progress.validation_seconds += time.perf_counter() - began
                    progress.seconds = time.perf_counter() - session
                    progress.n_validations -= 1
                    self._plan()
                    self._save()
                elif time.perf_counter() - self.saved_at >= _SAVE_SECONDS:
                    self._save()  # between two validations that lie far apart
                on_progress(progress)
        self.objective.encoder.load_state_dict(self.best)

    def _is_done(self) -> bool:
        progress = self.progress
        is_validated = bool(progress.history) and progress.history[-1]["step"] == progress.step
        return (self.done >= 1 and is_validated) or progress.n_stale >= self.settings.patience

    def _share_done(self) -> float:
        """Return the share of the budget that is spent, in seconds with a last validation."""
        progress = self.progress
        if self.budget.seconds is None:
            return progress.step / (self.n_steps or 1)
        seconds = torch.tensor(
            progress.seconds + self._seconds_per_validation(), dtype=torch.float64
        )
        return float(mean_over_ranks(seconds.to(self.device))) / self.budget.seconds

    def _seconds_per_validation(self) -> float:
        """Return what a validation took; before the first, a third of as many steps."""
        progress = self.progress
        if progress.history:
            return progress.validation_seconds / len(progress.history)
        return self.n_validation_batches * progress.step_seconds / max(progress.step, 1) / 3

    def _must_validate(self) -> bool:
        """Return whether a validation is due, the same on all ranks."""
        progress = self.progress
        if self.budget.seconds is None:
            return progress.step == progress.next_validation
        if self.done >= 1:
            return True
        times = [progress.seconds, progress.validation_seconds, self._seconds_per_validation()]
        of_ranks = mean_over_ranks(torch.tensor(times, dtype=torch.float64).to(self.device))
        is_due = (1 - self.done) * N_VALIDATIONS <= progress.n_validations - 1
        return is_due and has_time_to_validate(*of_ranks.tolist())

    def _plan(self) -> None:
        """Note what is left; by the clock, how many steps there will be is an estimate."""
        progress = self.progress
        if self.n_steps is not None:
            progress.n_steps = self.n_steps
            progress.next_validation = next_validation(
                progress.step, progress.n_validations, self.n_steps
            )
        elif progress.step:
            progress.n_steps = max(round(progress.step / self.done), progress.step)
            n_parts = math.ceil((1 - self.done) * N_VALIDATIONS)
            progress.n_validations = max(min(progress.n_validations, n_parts), 0)

    def _step(self, rows: IntArray, batch: FrameBatch) -> PretrainingLoss:
        """Take a gradient step and return its loss."""
        progress = self.progress
        at = (
            (progress.step, self.n_steps) if self.n_steps else (int(self.done * _N_PARTS), _N_PARTS)
        )
        factor = learning_rate_factor(*at)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * factor
        self.objective.train()
        self.optimizer.zero_grad()
        latest = self.micro_batch.compute(partial(backward, self.objective, batch, half=self.half))
        if not math.isfinite(average_gradients_(self.objective)):
            loss = float(mean_over_ranks(latest.loss))
            raise FloatingPointError(
                f"Expected a finite gradient, got a loss of {loss} in step {progress.step}, whose "
                f"first frames are rows {rows[:, 0].tolist()}. Lower the learning rate, or look at "
                "these frames; the last checkpoint is kept."
            )
        self.optimizer.step()
        progress.step += 1
        return latest

    def _validate(self, latest: PretrainingLoss) -> None:
        """Add an entry to the history, and keep the encoder if it is the best so far."""
        progress, settings = self.progress, self.settings
        self.objective.eval()
        found = []
        for index in range(self.n_validation_batches):
            rng = np.random.default_rng([settings.seed, _VALIDATION_SEED, index])
            rows = self.objective.draw(self.held_out, settings.batch_size, rng)
            batch = batch_of_rows(self.held_out, rows, index, self.ranks, self.device)
            each = self.micro_batch.compute(
                partial(evaluate, self.objective, batch, half=self.half)
            )
            found.append(mean_over_ranks(torch.stack(each)))
        loss, accuracy = torch.stack(found).double().mean(0).tolist()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"Expected a finite validation loss, got {loss} after step {progress.step}. Lower "
                "the learning rate; the last checkpoint is kept."
            )
        progress.n_stale += 1
        if loss < progress.best_loss:
            progress.best_loss, progress.best_step, progress.n_stale = loss, progress.step, 0
            self.best = _copy(self.objective.encoder)
        n_frames = progress.step * settings.batch_size * self.n_frames
        train_loss, train_accuracy = mean_over_ranks(torch.stack(latest)).tolist()
        progress.history.append(
            {
                "step": progress.step,
                "train_loss": train_loss,
                "train_accuracy": none_if_nan(train_accuracy),
                "validation_loss": loss,
                "validation_accuracy": none_if_nan(accuracy),
                "frames_per_second": n_frames / max(progress.step_seconds, 1e-9),
            }
        )

    def _save(self) -> None:
        """Write the checkpoint, from one rank."""
        if self.path is not None and self.ranks.rank == 0:
            write_checkpoint(
                self.path, self.objective, self.optimizer, self.best, self.progress, self.about
            )
        self.saved_at = time.perf_counter()


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _plain(value: Any) -> Any:
    """Return a number of numpy, which neither torch nor JSON takes everywhere, as Python's."""
    return value.item() if isinstance(value, np.generic) else value
