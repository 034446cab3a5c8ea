"""Features whose backward also carries the gradient of an auxiliary loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["GradientReport", "attach_gradients", "watch_gradients"]


class _AttachGradients(torch.autograd.Function):
    """Identity on the features; hands each parameter a ready gradient when they are trained."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, gradients: Sequence[Tensor], *parameters: Tensor
    ) -> Tensor:
        del parameters
        ctx.gradients = gradients
        return features.view_as(features)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:
        return (grad_outputs[0], None, *ctx.gradients)


def attach_gradients(
    features: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Tensor:
    """Return the features unchanged; a backward through them also adds `gradients`.

    The caller's `loss.backward()` then leaves d loss / d p + gradient in every parameter's
    `.grad`, whatever the scale of `loss`, just as if the auxiliary loss had been added to it. The
    auxiliary graph is already freed, so that only its gradients wait for the caller. A backward
    that does not reach the features adds nothing.

    Source: the identity of Megatron-LM's `MoEAuxLossAutoScaler`, which carries a scalar loss; we
    carry gradients, so that a non-finite one can be dropped before the host sees it.

    Args:
        features: Any tensor the host's loss depends on.
        parameters: Leaf tensors that require a gradient.
        gradients: One gradient per parameter, of its shape.
    """
    attached: Tensor = _AttachGradients.apply(  # type: ignore[no-untyped-call]
        features, tuple(gradients), *parameters
    )
    return attached


class GradientReport(NamedTuple):
    """How the auxiliary gradient compares with the host's on the shared parameters.

    Attributes:
        rl_norm: L2 norm of the host's gradient.
        infonce_norm: L2 norm of the auxiliary gradient (coefficient included) after `scale`.
        cosine: Cosine between the two, 0 if one of them vanishes.
        scale: Factor <= 1 by which the auxiliary gradient was bounded.
    """

    rl_norm: float
    infonce_norm: float
    cosine: float
    scale: float

    @property
    def ratio(self) -> float:
        """Auxiliary over host's norm; infinite if the host's vanishes."""
        return self.infonce_norm / self.rl_norm if self.rl_norm > 0 else float("inf")


def watch_gradients(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    n_shared: int,
    on_report: Callable[[GradientReport], None],
    *,
    max_ratio: float | None = None,
) -> Callable[[], None]:
    """Compare, and optionally bound, attached gradients at the end of the host's next backward.

    Runs once, after the last of the parameters has its gradient and before the host clips.

    Args:
        parameters: Those given to `attach_gradients`, in the same order.
        gradients: Those given to `attach_gradients`.
        n_shared: How many of the first parameters the host's loss trains, too.
        on_report: Receives the comparison.
        max_ratio: Scale all attached gradients down so that, on the shared parameters, their norm
            is at most this many times the host's.

    Returns:
        A function that withdraws the hooks; safe to call at any time.
    """
    waiting = set(range(len(parameters)))

    def withdraw() -> None:
        for handle in handles:
            handle.remove()

    def finish() -> None:
        withdraw()
        report = _compare(parameters[:n_shared], gradients[:n_shared], max_ratio)
        if report.scale < 1.0:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(gradient, alpha=report.scale - 1.0)
        on_report(report)

    def hook_of(index: int) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            waiting.discard(index)
            if not waiting:
                finish()

        return hook

    handles = [
        parameter.register_post_accumulate_grad_hook(hook_of(index))
        for index, parameter in enumerate(parameters)
    ]
    return withdraw


@torch.no_grad()
def _compare(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], max_ratio: float | None
) -> GradientReport:
    auxiliary = torch.cat([gradient.flatten() for gradient in gradients])
    total = torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten().to(auxiliary.dtype)
            for p in parameters
        ]
    )
    host = total - auxiliary
    norms = torch.stack([host.norm(), auxiliary.norm(), host @ auxiliary])
    rl_norm, infonce_norm, product = norms.tolist()
    cosine = product / (rl_norm * infonce_norm) if rl_norm * infonce_norm > 0 else 0.0
    scale = 1.0
    if max_ratio is not None and infonce_norm > max_ratio * rl_norm:
        scale = max_ratio * rl_norm / infonce_norm
    return GradientReport(rl_norm, scale * infonce_norm, cosine, scale)
