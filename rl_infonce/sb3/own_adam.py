"""Adam whose state a model's file keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.adam import adam

from rl_infonce.sb3.attach import AuxiliaryGradients

MAX_GRAD_NORM = 10.0


class OwnAdam(nn.Module):
    """Adam (Kingma & Ba 2015) whose moments are buffers, so that models and checkpoints keep them.

    Args:
        parameters: What is trained, in the order of every later call.

    Attributes:
        has_begun: Whether there was a step, as a bool: `torch.export` reads no buffer.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.has_begun = False
        self.register_buffer("n_steps", torch.zeros(len(parameters), dtype=torch.int64))
        for index, parameter in enumerate(parameters):
            self.register_buffer(f"mean_{index}", torch.zeros_like(parameter))
            self.register_buffer(f"square_{index}", torch.zeros_like(parameter))

    @torch.no_grad()
    def step(
        self,
        parameters: Sequence[nn.Parameter],
        auxiliary: AuxiliaryGradients,
        learning_rate: float,
    ) -> None:
        """Move parameters against gradients, whose norm is clipped at `MAX_GRAD_NORM`.

        A parameter without a gradient stays, and so do its moments and its count of steps.
        """
        given = {id(p): g for p, g in zip(auxiliary.parameters, auxiliary.gradients, strict=True)}
        moved = [index for index, each in enumerate(parameters) if id(each) in given]
        trained = [parameters[index] for index in moved]
        norm = nn.utils.get_total_norm(auxiliary.gradients)
        clip = (MAX_GRAD_NORM / (norm + 1e-6)).clamp_max(1.0)
        clipped = torch._foreach_mul([given[id(each)] for each in trained], clip)
        # fused Adam walks through memory and looks at no strides, which convolutions may change
        gradients = [
            gradient
            if gradient.stride() == each.stride()
            else torch.empty_like(each).copy_(gradient)
            for gradient, each in zip(clipped, trained, strict=True)
        ]
        buffers = dict(self.named_buffers())
        n_steps = buffers["n_steps"]
        adam(
            trained,  # type: ignore[arg-type]
            gradients,
            [buffers[f"mean_{index}"] for index in moved],
            [buffers[f"square_{index}"] for index in moved],
            [],
            list(n_steps[moved].float().unbind()),
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        n_steps[moved] += 1
        self.has_begun = bool(n_steps.any())

    def take_steps(self, other: OwnAdam) -> None:
        """Take over how many steps another one has made."""
        self.get_buffer("n_steps").copy_(other.get_buffer("n_steps"))
        self.has_begun = other.has_begun

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.has_begun = bool(self.get_buffer("n_steps").any())
