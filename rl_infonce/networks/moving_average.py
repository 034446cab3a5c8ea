"""A slowly moving copy of parameters, for positives without a gradient or what a policy reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def call_with(
    module: nn.Module, prefix: str, inputs: Tensor, parameters: dict[str, Tensor] | None
) -> Tensor:
    """Return module(inputs), with tensors named `<prefix><name>` in place of its parameters.

    Other entries of `parameters` are ignored; None leaves the module as it is.
    """
    if parameters is None:
        output: Tensor = module(inputs)
        return output
    own = {n.removeprefix(prefix): p for n, p in parameters.items() if n.startswith(prefix)}
    replaced: Tensor = functional_call(module, own, (inputs,))
    return replaced


class MovingAverage(nn.Module):
    """Moving average of parameters, in which the online ones weigh `tau` in (0, 1].

    It is exponential. The averages are buffers because SB3's optimiser and its re-initialisation of
    layers see parameters only. The first `update` copies, since SB3 initialises the online network
    after construction.

    Attributes:
        has_begun: Whether the average has been updated, as a bool: `torch.export` reads no buffer.
    """

    def __init__(self, parameters: Mapping[str, Tensor], tau: float) -> None:
        super().__init__()
        self.tau = tau
        self.has_begun = False
        self._names = {name: f"average_{index}" for index, name in enumerate(parameters)}
        self.register_buffer("n_updates", torch.zeros((), dtype=torch.int64))
        for index, parameter in enumerate(parameters.values()):
            self.register_buffer(f"average_{index}", parameter.detach().clone())

    def averages(self) -> dict[str, Tensor]:
        """Return the averaged tensors by name."""
        # the policy asks in every step, and `get_buffer` takes its time
        return {name: self._buffers[own] for name, own in self._names.items()}  # type: ignore[misc]

    @torch.no_grad()
    def update(self, parameters: Mapping[str, Tensor]) -> None:
        """Move every average towards the online parameters: a <- a + tau (p - a)."""
        weight = self.tau if self.has_begun else 1.0
        for name, average in self.averages().items():
            if weight == 1 or not average.is_floating_point():  # a count, as batch norm has one
                average.copy_(parameters[name])  # also over numbers that are not finite
            else:
                average.lerp_(parameters[name], weight)
        self.get_buffer("n_updates").add_(1)
        self.has_begun = True

    def restart(self) -> None:
        """Let the next update copy the online parameters, as the first one did."""
        self.get_buffer("n_updates").zero_()
        self.has_begun = False

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.has_begun = bool(self.get_buffer("n_updates"))
