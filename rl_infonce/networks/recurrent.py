"""Recurrent parts of the objective, which summarise the past and the actions to come."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_infonce.checks import check_shape


class GRUSummary(nn.Module):
    """A gated recurrent unit (Cho et al. 2014) over short sequences of different lengths.

    Its weights are raw parameters drawn from the given generator: SB3, which re-initialises every
    linear layer, leaves them alone, and no global random stream is used.
    """

    def __init__(self, input_dim: int, hidden_dim: int, *, generator: torch.Generator) -> None:
        super().__init__()
        bound = hidden_dim**-0.5

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=generator))

        self.hidden_dim = hidden_dim
        self.weight_ih = uniform(3 * hidden_dim, input_dim)
        self.weight_hh = uniform(3 * hidden_dim, hidden_dim)
        self.bias_ih = uniform(3 * hidden_dim)
        self.bias_hh = uniform(3 * hidden_dim)

    def forward(
        self, inputs: Tensor, *, used: Tensor | None = None, initial: Tensor | None = None
    ) -> Tensor:
        """Return the state [B, L, hidden_dim] after every step of inputs [B, L, input_dim].

        The oldest step comes first. Steps that are not `used` [B, L] leave the state as it was; an
        `initial` state of None is zeros.
        """
        check_shape("inputs", inputs, ("B", "L", self.weight_ih.shape[1]))
        state = inputs.new_zeros(inputs.shape[0], self.hidden_dim) if initial is None else initial
        states = []
        for step in range(inputs.shape[1]):
            following = torch.gru_cell(
                inputs[:, step], state, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
            )
            state = (
                following if used is None else torch.where(used[:, step, None], following, state)
            )
            states.append(state)
        return torch.stack(states, dim=1)
