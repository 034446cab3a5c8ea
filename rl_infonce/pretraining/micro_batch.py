"""How many samples are encoded at a time: ever fewer where memory runs out."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rl_infonce.pretraining.base_objective import PretrainingLoss


class MicroBatch:
    """The number of samples that are encoded at a time; it stays where other ranks would differ."""

    def __init__(self, n_samples: int, optimizer: torch.optim.Optimizer, *, is_alone: bool) -> None:
        self.n_samples = n_samples
        self._optimizer, self._is_alone = optimizer, is_alone

    def compute(self, loss: Callable[..., PretrainingLoss]) -> PretrainingLoss:
        """Return the loss with so many samples per `part`, halved until memory holds them."""
        while True:
            try:
                return loss(part=self.n_samples)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                if self.n_samples == 1 or not self._is_alone:
                    raise MemoryError(self._refusal(error)) from error
            # After `except`, as the error's traceback holds the tensors of the failed attempt.
            self.n_samples //= 2
            self._optimizer.zero_grad()
            torch.cuda.empty_cache()

    def _refusal(self, error: RuntimeError) -> str:
        smaller = "`micro_batch_size`: the run goes on"
        if self.n_samples == 1:
            smaller = "`batch_size`, and another folder for this other run"
        return (
            f"Expected memory to encode {self.n_samples} samples at a time, beside the loss of the "
            f"whole batch: {error}. Pass a smaller {smaller}."
        )


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether memory ran out; on the CPU torch has no class of its own for that."""
    on_cpu = "DefaultCPUAllocator: " in str(error)
    return on_cpu or isinstance(error, torch.cuda.OutOfMemoryError)
