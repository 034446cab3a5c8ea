"""Losses of many classifiers at once, in few shapes of products."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rl_infonce.probing.softmax_loss import SoftmaxLosses, fast_products

SIZES = (2, 300, 7, 41)
MATMUL: Any = getattr(torch.backends.mkldnn, "matmul", None)


def problem(n_inputs: int, n_columns: int) -> tuple[SoftmaxLosses, torch.Tensor, torch.Tensor]:
    """Return losses, their targets and weights of all classifiers."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n_inputs, n_columns, generator=generator)
    targets = torch.stack([torch.randint(n, (n_inputs,), generator=generator) for n in SIZES])
    weights = torch.randn(sum(SIZES), n_columns, generator=generator) / n_columns**0.5
    return SoftmaxLosses(inputs, targets, SIZES), targets, weights


def rows_of(which: Sequence[int]) -> torch.Tensor:
    """Return the rows of the weights that belong to some classifiers."""
    owners = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    return torch.isin(owners, torch.tensor(which))


@pytest.mark.parametrize(("fast", "tolerance"), [(False, 1e-5), (True, 2e-2)])
@pytest.mark.parametrize("which", [(0, 1, 2, 3), (1, 3), (0,)])
@pytest.mark.parametrize(("n_inputs", "n_columns"), [(5, 3), (2048, 64), (2500, 70)])
def test_losses_and_gradients_are_those_of_cross_entropies(
    n_inputs: int, n_columns: int, which: tuple[int, ...], fast: bool, tolerance: float
) -> None:
    losses, targets, weights = problem(n_inputs, n_columns)
    weights = weights[rows_of(which)].requires_grad_()
    found, gradients = losses(weights.detach(), which, fast=fast)
    scores = losses.inputs[:, :n_columns] @ weights.T
    parts = torch.split(scores, [SIZES[index] for index in which], dim=1)
    expected = torch.stack(
        [F.cross_entropy(part, targets[index]) for part, index in zip(parts, which, strict=True)]
    )
    expected.sum().backward()  # type: ignore[no-untyped-call]
    assert weights.grad is not None
    torch.testing.assert_close(found.float(), expected.detach(), rtol=tolerance, atol=tolerance)
    assert gradients.shape == weights.shape
    error = (gradients - weights.grad).norm() / weights.grad.norm()
    assert error < tolerance


class _Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the shapes of fast products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[tuple[Any, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.mm and MATMUL.fp32_precision == "bf16":
            self.found.add(tuple(tuple(factor.shape) for factor in args[:2]))
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not hasattr(MATMUL, "fp32_precision"), reason="torch before 2.9")
def test_fast_products_have_few_shapes_whatever_is_probed() -> None:
    with _Shapes() as shapes:
        for n_columns in (65, 80, 101, 128):
            losses, _, weights = problem(5000, n_columns)
            for which in ((0, 1, 2, 3), (1, 2, 3), (1, 3), (3,)):
                losses(weights[rows_of(which)], which, fast=True)
    assert shapes.found == {
        factors
        for n_rows in (128, 384)
        for n_inputs in (4096, 904)
        for factors in (
            ((n_rows, 128), (128, n_inputs)),
            ((n_rows, n_inputs), (n_inputs, 128)),
        )
    }


@pytest.mark.skipif(not hasattr(MATMUL, "fp32_precision"), reason="torch before 2.9")
def test_the_setting_of_products_comes_back() -> None:
    before = MATMUL.fp32_precision
    context = fast_products()
    context.__enter__()
    assert MATMUL.fp32_precision == "bf16"
    assert not context.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert MATMUL.fp32_precision == before
