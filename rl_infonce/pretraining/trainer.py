"""Pretrain an encoder: steps, validation, the best weights, and a run that can be continued."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rl_infonce.checks import check_choice, check_number
from rl_infonce.pretraining.budget import Budget, learning_rate_factor
from rl_infonce.pretraining.checkpoint import Progress, read_checkpoint, write_checkpoint
from rl_infonce.pretraining.frames import EpisodeFrames, IntArray
from rl_infonce.pretraining.gradients import average_over_ranks_, backward, evaluate
from rl_infonce.pretraining.objective import FrameBatch, PretrainingObjective

__all__ = ["CHECKPOINT", "PretrainingSettings", "pretrain"]

CHECKPOINT = "checkpoint.safetensors"
_N_VALIDATIONS = 40
_N_TIMED_STEPS = 10
_N_WARM_STEPS = 5
_VALIDATION_SEED = 2**32 - 1


@dataclass(frozen=True)
class PretrainingSettings:
    """How to train.

    Attributes:
        batch_size: Samples per step, over all ranks, at least 2.
        micro_batch_size: Samples to encode at a time; None takes all. The gradient is the same.
        learning_rate: Of Adam, > 0; it rises over the first 2 % of the steps and falls to 0.
        precision: Of convolutions, "bf16" or "fp32".
        n_validation_samples: Held-out samples per validation, at least 2.
        patience: Validations without progress, of 40, after which a run ends.
        seed: Of the batches.
    """

    batch_size: int = 64
    micro_batch_size: int | None = None
    learning_rate: float = 3e-4
    precision: str = "bf16"
    n_validation_samples: int = 1024
    patience: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("batch_size", self.batch_size, at_least=2)
        if self.micro_batch_size is not None:
            check_number("micro_batch_size", self.micro_batch_size, at_least=1)
        check_number("learning_rate", self.learning_rate, above=0)
        check_choice("precision", self.precision, ("bf16", "fp32"))
        check_number("n_validation_samples", self.n_validation_samples, at_least=2)
        check_number("patience", self.patience, at_least=1)
        check_number("seed", self.seed, at_least=0)


def pretrain(
    objective: PretrainingObjective,
    train: EpisodeFrames,
    validation: EpisodeFrames,
    budget: Budget,
    settings: PretrainingSettings,
    *,
    folder: Path | None = None,
    about: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Progress:
    """Train an objective in place; its encoder ends with the weights of the lowest validation loss.

    Batches depend on the seed and the step alone: a run that is continued, and one on several
    ranks, sees the same as one that is not.

    Args:
        objective: On the device to train on.
        train: Frames to learn from.
        validation: Frames of other episodes.
        budget: Steps, or seconds.
        settings: How.
        folder: Where `checkpoint.safetensors` goes after every validation, and whence a run is
            continued; it exists. None keeps nothing.
        about: What else a checkpoint must agree in to be continued, as JSON can hold it.
        on_progress: Called after every step.

    Returns:
        Losses and speeds.

    Raises:
        FloatingPointError: If a loss is not finite; the step and its rows are named, and the last
            checkpoint is kept.
        ValueError: If no episode is long enough, or the folder holds a run of other settings.
        OSError: If the folder cannot be written.
    """
    run = _Run(objective, train, validation, settings, folder, budget, dict(about or {}))
    progress = run.progress
    started = time.perf_counter() - progress.seconds
    batches = run.batches(progress.step)
    timed = 0.0
    while not progress.n_steps or progress.step < progress.n_steps:
        if progress.n_stale >= settings.patience:
            break
        run.step(next(batches))
        progress.seconds = time.perf_counter() - started
        if not progress.n_steps:
            if progress.step == _N_WARM_STEPS:
                timed = progress.seconds
            elif progress.step == _N_WARM_STEPS + _N_TIMED_STEPS:
                progress.n_steps = run.affordable_steps((progress.seconds - timed) / _N_TIMED_STEPS)
        if progress.n_steps and run.is_due():
            run.validate()
            progress.seconds = time.perf_counter() - started
            run.save()
        if on_progress is not None:
            on_progress(progress)
    run.restore_best()
    return progress


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
        self.objective, self.train, self.validation = objective, train, validation
        self.settings, self.budget = settings, budget
        self.path = None if folder is None else folder / CHECKPOINT
        self.device = next(objective.parameters()).device
        self.rank, self.n_ranks = _rank()
        if settings.batch_size % self.n_ranks:
            raise ValueError(
                f"Expected `batch_size` to be a multiple of the {self.n_ranks} ranks, got "
                f"{settings.batch_size}."
            )
        self.half = settings.precision == "bf16"
        if self.half:
            objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.Adam(
            objective.parameters(), lr=settings.learning_rate, eps=1e-5, fused=True
        )
        self.progress = Progress(n_steps=budget.n_steps or 0)
        self.best = _copy(objective.encoder)
        self.about = {**about, **asdict(settings), **budget._asdict()}
        if self.path is not None and self.path.exists():
            self.progress, self.best = read_checkpoint(
                self.path, objective, self.optimizer, self.about
            )
        self.part = settings.micro_batch_size or settings.batch_size

    def batches(self, first: int) -> Iterator[tuple[IntArray, FrameBatch]]:
        """Yield rows and batch of every step, loaded while the step before it runs."""
        with ThreadPoolExecutor(1, "load") as loader:
            step = first
            coming = loader.submit(self._load, step)
            while True:
                loaded = coming.result()
                step += 1
                coming = loader.submit(self._load, step)
                yield loaded

    def _load(self, step: int) -> tuple[IntArray, FrameBatch]:
        rng = np.random.default_rng([self.settings.seed, step])
        rows = self.objective.draw(self.train, self.settings.batch_size, rng)
        return rows, self._batch(self.train, rows, step)

    def _batch(self, frames: EpisodeFrames, rows: IntArray, seed: int) -> FrameBatch:
        """Return this rank's share of the samples."""
        share = len(rows) // self.n_ranks
        rows = rows[self.rank * share : (self.rank + 1) * share]
        images = frames.observations[rows.ravel()]
        images = torch.as_tensor(images).view(*rows.shape, *images.shape[1:]).to(self.device)
        labels = {
            name: torch.as_tensor(np.asarray(values)[rows[:, 0]].astype(np.int64)).to(self.device)
            for name, values in frames.labels.items()
        }
        return FrameBatch(images, labels, seed * self.n_ranks + self.rank)

    def step(self, loaded: tuple[IntArray, FrameBatch]) -> None:
        """Take a gradient step."""
        rows, batch = loaded
        progress = self.progress
        # while the first steps are timed, their number is not known: they hardly move
        factor = learning_rate_factor(progress.step, progress.n_steps or 10**6)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * factor
        self.objective.train()
        self.optimizer.zero_grad()
        self.latest = self._backward(rows, batch)
        self.n_frames_per_sample = rows.shape[1]
        average_over_ranks_(self.objective)
        self.optimizer.step()
        progress.step += 1

    def _backward(self, rows: IntArray, batch: FrameBatch) -> tuple[Tensor, Tensor]:
        while True:
            try:
                found = backward(self.objective, batch, half=self.half, part=self.part)
                return found.loss, found.accuracy
            except FloatingPointError as error:
                raise FloatingPointError(
                    f"{error} It is that of step {self.progress.step}, whose first frames are rows "
                    f"{rows[:, 0].tolist()}. Lower the learning rate, or look at these frames; the "
                    "last checkpoint is kept."
                ) from error
            except torch.cuda.OutOfMemoryError:
                if self.part == 1:
                    raise
                self.part = max(self.part // 2, 1)
                self.optimizer.zero_grad()
                torch.cuda.empty_cache()

    def is_due(self) -> bool:
        """Return whether to validate now: 40 times, at the same steps however a run is cut."""
        progress = self.progress
        every = max(progress.n_steps // _N_VALIDATIONS, 1)
        return progress.step % every == 0 or progress.step == progress.n_steps

    @torch.no_grad()
    def validate(self) -> None:
        """Add an entry to the history, and keep the encoder if it is the best so far."""
        progress, settings = self.progress, self.settings
        self.objective.eval()
        losses, accuracies = [], []
        n_batches = max(settings.n_validation_samples // settings.batch_size, 1)
        for index in range(n_batches):
            rng = np.random.default_rng([settings.seed, _VALIDATION_SEED, index])
            rows = self.objective.draw(self.validation, settings.batch_size, rng)
            found = evaluate(
                self.objective, self._batch(self.validation, rows, index), half=self.half
            )
            losses.append(_mean_over_ranks(found.loss))
            accuracies.append(_mean_over_ranks(found.accuracy))
        loss = float(np.mean(losses))
        progress.n_stale += 1
        if loss < progress.best_loss:
            progress.best_loss, progress.best_step, progress.n_stale = loss, progress.step, 0
            self.best = _copy(self.objective.encoder)
        n_frames = progress.step * settings.batch_size * self.n_frames_per_sample
        progress.history.append(
            {
                "step": progress.step,
                "train_loss": float(self.latest[0]),
                "train_accuracy": float(self.latest[1]),
                "validation_loss": loss,
                "validation_accuracy": float(np.mean(accuracies)),
                "frames_per_second": n_frames / max(progress.seconds, 1e-9),
            }
        )

    def affordable_steps(self, seconds_per_step: float) -> int:
        """Return how many steps the budget pays for; the same on all ranks.

        Validation without gradients takes a third of a step per batch.
        """
        n_batches = max(self.settings.n_validation_samples // self.settings.batch_size, 1)
        left = (self.budget.seconds or 0.0) - self.progress.seconds
        n_more = left / seconds_per_step - _N_VALIDATIONS * n_batches / 3
        n_steps = self.progress.step + max(int(n_more), 1)
        return round(_mean_over_ranks(torch.tensor(float(n_steps), device=self.device)))

    def save(self) -> None:
        """Write the checkpoint, from one rank."""
        if self.path is not None and self.rank == 0:
            write_checkpoint(
                self.path, self.objective, self.optimizer, self.best, self.progress, self.about
            )

    def restore_best(self) -> None:
        """Give the encoder the weights of the lowest validation loss."""
        self.objective.encoder.load_state_dict(self.best)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _rank() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _mean_over_ranks(value: Tensor) -> float:
    if dist.is_available() and dist.is_initialized():
        value = value.detach().clone()
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return float(value)
