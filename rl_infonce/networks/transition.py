"""A model of what actions make of features, step by step."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_infonce.checks import check_shape

_HIDDEN = 256  # units of each hidden layer


class MLPTransition(nn.Module):
    """Features and action to the next features, by a network with two hidden layers of ELU units.

    The state-action encoder of TD7 (Fujimoto et al. 2023, eq. 1), applied again to its own output
    for several steps as the transition model of SPR is (Schwarzer et al. 2021, section 2). Its
    output has no norm, as in TD7, while SPR normalises it before the next step. Its weights are raw
    parameters drawn from the given generator: SB3, which re-initialises every linear layer, leaves
    them alone.

    Args:
        features_dim: Number D of features.
        action_dim: Size A of an encoded action; 0 for a model that does not see the actions.
        generator: Source of the initial weights.
    """

    def __init__(self, features_dim: int, action_dim: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.action_dim = action_dim
        sizes = [features_dim + action_dim, _HIDDEN, _HIDDEN, features_dim]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for n_in, n_out in itertools.pairwise(sizes):
            bound = n_in**-0.5
            for parameters, shape in ((self.weights, (n_out, n_in)), (self.biases, (n_out,))):
                drawn = torch.empty(*shape).uniform_(-bound, bound, generator=generator)
                parameters.append(nn.Parameter(drawn))

    def forward(self, actions: Tensor, *, initial: Tensor) -> Tensor:
        """Return the features [B, L, D] after each of the actions [B, L, A].

        Args:
            actions: [B, L, A] encoded actions, the first one first.
            initial: [B, D] features before the first action.
        """
        check_shape("actions", actions, ("B", "L", self.action_dim))
        features, steps = initial, []
        for step in range(actions.shape[1]):
            hidden = torch.cat([features, actions[:, step]], dim=1)
            for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                hidden = F.linear(F.elu(hidden) if index else hidden, weight, bias)
            features = hidden
            steps.append(features)
        return torch.stack(steps, dim=1)
