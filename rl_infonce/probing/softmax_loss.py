"""Mean cross-entropy of many softmax classifiers on the same inputs, with its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = ["SoftmaxLosses", "fast_products"]

_ROWS_PER_BLOCK = 2048  # scores of a block stay in the cache


class SoftmaxLosses:
    """The losses of V classifiers whose weights are rows of one matrix.

    Classifier v has `sizes[v]` rows, one per class. All scores of a block of inputs come from one
    product and all gradients from another, however unequal the sizes; memory grows with neither
    the number of inputs nor the number of classifiers times classes.

    Args:
        inputs: [N, D] float32.
        targets: [V, N] class of each input, in 0..sizes[v]-1.
        sizes: Number of classes of each classifier.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> None:
        self.inputs, self.targets, self.sizes = inputs, targets, list(sizes)

    def __call__(self, weights: Tensor, which: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return mean losses [len(which)] in nats, float64, and their gradients [C, D].

        Args:
            weights: [C, D] the rows of the classifiers in `which`, one after the other.
            which: Classifiers to evaluate.
        """
        losses = torch.zeros(len(which), dtype=torch.float64, device=weights.device)
        gradients = torch.zeros_like(weights)
        sizes = [self.sizes[index] for index in which]
        for start in range(0, len(self.inputs), _ROWS_PER_BLOCK):
            block = self.inputs[start : start + _ROWS_PER_BLOCK]
            scores = weights @ block.T  # [C, B]: each classifier's part is contiguous
            targets = self.targets[:, start : start + _ROWS_PER_BLOCK]
            for position, part in enumerate(torch.split(scores, sizes)):
                losses[position] += _to_excess_(part, targets[which[position]])
            gradients += scores @ block
        return losses / len(self.inputs), gradients.div_(len(self.inputs))


def _to_excess_(scores: Tensor, targets: Tensor) -> Tensor:
    """Turn scores [C, B] into probabilities less one-hot targets; return the summed loss."""
    index = targets.unsqueeze(0)  # [1, B]
    scores.sub_(scores.amax(dim=0))
    of_target = scores.gather(0, index)
    scores.exp_()
    sums = scores.sum(dim=0)
    scores.div_(sums)
    scores.scatter_add_(0, index, torch.full_like(of_target, -1.0))
    return (sums.log() - of_target).sum(dtype=torch.float64)


@contextmanager
def fast_products() -> Iterator[None]:
    """Let float32 products round their factors to bfloat16 where the processor multiplies those.

    Sums and results stay float32. 3 to 4 times as fast with Intel's AMX; without hardware for it,
    nothing changes. The setting is torch's own, and what it was before comes back.
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
