"""The mean cross-entropy of many softmax classifiers on the same inputs, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS_PER_BLOCK = 4096  # small enough that a block's scores stay in the cache
# oneDNN compiles a kernel of 1 MB for every shape of fast products, and keeps a thousand of them
_ROWS, _COLUMNS = 128, 64


class SoftmaxLosses:
    """The losses of V classifiers whose weights are rows of one matrix.

    Classifier v has `sizes[v]` rows, one per class; `targets` [V, N] hold the class of each of the
    inputs [N, D]. All scores of a block of inputs come from one product and all gradients from
    another, however unequal the sizes; memory grows neither with the number of inputs nor with the
    number of classifiers times classes.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> None:
        self.n_columns = inputs.shape[1]
        self.inputs = F.pad(inputs, (0, -self.n_columns % _COLUMNS))
        self.targets, self.sizes = targets, list(sizes)

    def __call__(
        self, weights: Tensor, which: Sequence[int], *, fast: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses [len(which)] in nats, float64, and their gradients [C, D].

        The rows of the classifiers in `which` stand one after the other in `weights` [C, D]. With
        `fast`, products may round their factors to bfloat16, as `fast_products` says.
        """
        fast = fast and weights.device.type == "cpu"
        inputs = self.inputs if fast else self.inputs[:, : self.n_columns]
        n_rows = -len(weights) % _ROWS if fast else 0
        padded = F.pad(weights, (0, inputs.shape[1] - weights.shape[1], 0, n_rows))
        losses = torch.zeros(len(which), dtype=torch.float64, device=weights.device)
        gradients = torch.zeros_like(padded)
        sizes = [self.sizes[index] for index in which]
        with fast_products() if fast else nullcontext():
            for start in range(0, len(inputs), _ROWS_PER_BLOCK):
                block = inputs[start : start + _ROWS_PER_BLOCK]
                scores = padded @ block.T  # the scores of a classifier are contiguous
                targets = self.targets[:, start : start + _ROWS_PER_BLOCK]
                for position, part in enumerate(torch.split(scores[: len(weights)], sizes)):
                    losses[position] += _to_excess_(part, targets[which[position]])
                gradients += scores @ block
        gradients = gradients[: len(weights), : self.n_columns]
        return losses / len(inputs), gradients / len(inputs)


def _to_excess_(scores: Tensor, targets: Tensor) -> Tensor:
    """Turn scores [C, B] into probabilities minus one-hot targets, and return the summed loss."""
    index = targets.unsqueeze(0)  # [1, B]
    torch.log_softmax(scores, dim=0, out=scores)
    of_target = scores.gather(0, index)
    scores.exp_().scatter_add_(0, index, torch.full_like(of_target, -1.0))
    return -of_target.sum(dtype=torch.float64)


@contextmanager
def fast_products() -> Iterator[None]:
    """Let float32 products round their factors to bfloat16 if the processor multiplies bfloat16.

    Sums and results stay float32. This is 3 to 4 times as fast with Intel's AMX; without such
    hardware, nothing changes. The setting is torch's own, and is restored afterwards.
    """
    products: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(products, "fp32_precision"):  # torch before 2.9
        yield
        return
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before
