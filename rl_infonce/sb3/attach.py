"""Features whose backward also carries the gradient of an auxiliary loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class AuxiliaryGradients(NamedTuple):
    """Gradients of an auxiliary loss, waiting for the host's backward.

    Attributes:
        parameters: Leaf tensors that require a gradient, or tensors that the features are made
            of, whose gradient goes on to the leaves in the host's backward.
        gradients: One gradient per parameter, of its shape.
        n_shared: How many of the first parameters the host's loss also trains.
    """

    parameters: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    n_shared: int

    @property
    def reaches_parameters(self) -> bool:
        """Whether the shared parameters are leaves, whose gradients are the host's also.

        It is False for a frozen encoder, which shares none, and for tensors that carry gradients.
        """
        shared = self.parameters[: self.n_shared]
        return bool(shared) and all(each.is_leaf for each in shared)


def auxiliary_gradients(
    loss: Tensor, shared: Sequence[Tensor], own: Sequence[Tensor]
) -> AuxiliaryGradients:
    """Differentiate `loss`, free its graph, and leave every `.grad` alone.

    Args:
        loss: [] auxiliary loss.
        shared: Parameters that the host's loss also trains.
        own: Parameters of the auxiliary loss alone.

    Returns:
        The gradients of those parameters that the loss depends on.
    """
    parameters = [*shared, *own]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = [(p, g) for p, g in zip(parameters, found, strict=True) if g is not None]
    return AuxiliaryGradients(
        parameters=tuple(parameter for parameter, _ in pairs),
        gradients=tuple(gradient for _, gradient in pairs),
        n_shared=sum(gradient is not None for gradient in found[: len(shared)]),
    )


def carried_gradients(
    loss: Tensor,
    carriers: Sequence[Tensor],
    copies: Sequence[Tensor],
    shared: Sequence[Tensor],
    own: Sequence[Tensor],
) -> AuxiliaryGradients:
    """Differentiate a loss of detached copies, so that the originals carry its gradient on.

    Args:
        loss: [] auxiliary loss.
        carriers: Tensors in the host's graph.
        copies: Their detached copies, of which the loss was made.
        shared: Parameters that the host's loss also trains, where the loss depends on them beside.
        own: Parameters of the auxiliary loss alone.
    """
    trained = [each for each in copies if each.requires_grad]
    found = auxiliary_gradients(loss, [*trained, *shared], own)
    originals = {id(copy): carrier for copy, carrier in zip(copies, carriers, strict=True)}
    parameters = tuple(originals.get(id(each), each) for each in found.parameters)
    return found._replace(parameters=parameters)


class _AttachGradients(torch.autograd.Function):
    """Identity on the features; hands each parameter a ready gradient when they are trained."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, gradients: Sequence[Tensor], *parameters: Tensor
    ) -> Tensor:
        del parameters
        ctx.save_for_backward(*gradients)  # frees them in the backward, unless watched
        return features.view_as(features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:
        return (grad_outputs[0], None, *ctx.saved_tensors)


def attach_gradients(features: Tensor, auxiliary: AuxiliaryGradients) -> Tensor:
    """Return the features unchanged; a backward through them also adds the auxiliary gradients.

    The caller's `loss.backward()` then leaves d loss / d p + gradient in every parameter's
    `.grad`, whatever the scale of `loss`, just as if the auxiliary loss had been added to it. A
    backward that does not reach the features adds nothing, and each of several adds them again.

    Source: the identity of Megatron-LM's `MoEAuxLossAutoScaler`, which carries a scalar loss; we
    carry gradients, so that a non-finite one can be dropped before the host sees it, and so that
    the auxiliary graph is freed before the host builds its own.

    Args:
        features: Any tensor the host's loss depends on.
        auxiliary: What to add.
    """
    attached: Tensor = _AttachGradients.apply(  # type: ignore[no-untyped-call]
        features, auxiliary.gradients, *auxiliary.parameters
    )
    return attached


class GradientWatch:
    """Compare, and optionally bound, attached gradients at the end of the host's next backward.

    Hooks on the parameters run once; the last to run compares, after the last of the parameters has
    its gradient and before the host clips.

    Args:
        auxiliary: What was given to `attach_gradients`.
        on_numbers: Receives the comparison, by the names of its curves: the L2 norms of both
            gradients on the shared parameters, the auxiliary one (coefficient included) after the
            bound, and of that on its own parameters; the cosine, 0 if one of the two vanishes; the
            factor <= 1 of the bound; and the ratio of the norms, unless the host's vanishes.
        max_ratio: Scale all attached gradients down so that, on the shared parameters, their norm
            is at most this many times the host's.
    """

    def __init__(
        self,
        auxiliary: AuxiliaryGradients,
        on_numbers: Callable[[dict[str, float]], None],
        *,
        max_ratio: float | None = None,
    ) -> None:
        self.auxiliary = auxiliary
        self.on_numbers = on_numbers
        self.max_ratio = max_ratio
        self.waiting = {id(parameter) for parameter in auxiliary.parameters}
        self.arriving: dict[int, Tensor] = {}
        self.handles = [
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for parameter in auxiliary.parameters
        ]
        # `.grad` may hold an earlier backward: SAC's actor loss comes upon the critic's.
        self.handles += [
            parameter.register_hook(partial(self._note, parameter))  # type: ignore[no-untyped-call]
            for parameter in auxiliary.parameters[: auxiliary.n_shared]
        ]

    def _note(self, parameter: Tensor, gradient: Tensor) -> None:
        self.arriving[id(parameter)] = gradient

    def _arrived(self, parameter: Tensor) -> None:
        self.waiting.discard(id(parameter))
        if self.waiting:
            return
        numbers = _compare(self.auxiliary, self.arriving, self.max_ratio)
        self.withdraw()
        if numbers["grad_scale"] < 1.0:
            _rescale(self.auxiliary, numbers["grad_scale"])
        self.on_numbers(numbers)

    def withdraw(self) -> None:
        """Take the hooks away, whether they have run or not."""
        self.arriving = {}
        for handle in self.handles:
            handle.remove()


class Attachment:
    """Attaches gradients to the host's next backward, under the hooks of one watch at a time."""

    def __init__(self) -> None:
        self._withdraw_hooks: Callable[[], None] = _nothing

    def attach(
        self,
        features: Tensor,
        auxiliary: AuxiliaryGradients | None,
        on_numbers: Callable[[dict[str, float]], None] | None,
        max_ratio: float | None,
    ) -> Tensor:
        """Return features whose backward carries the gradients.

        Args:
            features: What the host's loss depends on.
            auxiliary: The gradients; None leaves the features as they are.
            on_numbers: Receives the comparison with the host's gradient; None wants none.
            max_ratio: Bound as in `GradientWatch`.
        """
        self._withdraw_hooks()  # of a backward that never came
        self._withdraw_hooks = _nothing  # which keeps no gradients in memory
        if auxiliary is None:
            return features
        is_watched = on_numbers is not None or max_ratio is not None
        if is_watched and auxiliary.reaches_parameters:
            # SAC's actor loss also passes the critic, and those gradients are thrown away
            watch = GradientWatch(auxiliary, on_numbers or _nothing, max_ratio=max_ratio)
            self._withdraw_hooks = watch.withdraw
        return attach_gradients(features, auxiliary)


def _nothing(*_: object) -> None:
    pass


def _rescale(auxiliary: AuxiliaryGradients, scale: float) -> None:
    for parameter, gradient in zip(auxiliary.parameters, auxiliary.gradients, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(gradient, alpha=scale - 1.0)


@torch.no_grad()
def _compare(
    auxiliary: AuxiliaryGradients, arriving: Mapping[int, Tensor], max_ratio: float | None
) -> dict[str, float]:
    shared = auxiliary.parameters[: auxiliary.n_shared]
    own = torch.cat([g.flatten() for g in auxiliary.gradients[: auxiliary.n_shared]])
    heads = torch.nn.utils.get_total_norm(auxiliary.gradients[auxiliary.n_shared :]).to(own)
    total = torch.cat([arriving[id(p)].flatten().to(own.dtype) for p in shared])
    host = total - own
    found = torch.stack([host.norm(), own.norm(), heads, host @ own])
    rl_norm, infonce_norm, heads_norm, product = found.tolist()
    cosine = product / (rl_norm * infonce_norm) if rl_norm * infonce_norm > 0 else 0.0
    scale = 1.0
    if max_ratio is not None and infonce_norm > max_ratio * rl_norm:
        scale = max_ratio * rl_norm / infonce_norm
    numbers = {
        "grad_norm_rl": rl_norm,
        "grad_norm_infonce": scale * infonce_norm,
        "grad_norm_heads": scale * heads_norm,
        "grad_cosine": cosine,
        "grad_scale": scale,
    }
    return numbers | ({"grad_ratio": scale * infonce_norm / rl_norm} if rl_norm > 0 else {})
