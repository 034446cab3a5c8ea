"""A loss of the user's own on features of pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from rl_infonce.device import seeded_on_cpu


class CustomLoss(nn.Module):
    """The module of a user's own, called `loss`, as a part that others leave alone.

    Its weights are drawn from torch's global stream, which is put back to where it was. SB3 would
    draw linear layers anew from that stream, and so train another network than without the loss;
    `apply` keeps it out.

    Args:
        make: Sizes of features and of an encoded action -> module from features [B, D], futures
            [K, B, D] and actions [B, largest horizon, A], or None without actions, to a loss [].
        features_dim: D.
        action_dim: A; 0 without actions.
        generator: Source of the seed of the weights.

    Raises:
        TypeError: If `make` makes no module, or not of both sizes.
    """

    def __init__(
        self,
        make: Callable[[int, int], Any],
        features_dim: int,
        action_dim: int,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if isinstance(make, nn.Module):
            raise TypeError(
                "Expected `objective` to be a class, or a function that makes a loss, got a "
                f"{type(make).__name__} itself. Pass `lambda features_dim, action_dim: ...`."
            )
        seed = int(torch.randint(2**62, (), generator=generator))
        with seeded_on_cpu(seed):
            loss = _made(make, features_dim, action_dim)
        if not isinstance(loss, nn.Module):
            raise TypeError(
                "Expected `objective` to make a torch.nn.Module of features_dim and action_dim, "
                f"got {type(loss).__name__} from {make!r}."
            )
        self.loss = loss

    def forward(self, features: Tensor, futures: Tensor, actions: Tensor | None) -> Tensor:
        """Return the loss [] of a batch.

        Raises:
            ValueError: If the module returns anything but one number.
        """
        loss = self.loss(features, futures, actions)
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            got = f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise ValueError(
                "Expected `objective` to make a loss that returns one number, a tensor of shape "
                f"(), got {got} from {type(self.loss).__name__}. Take the mean over the batch."
            )
        return loss

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Return the module as it is."""
        del fn
        return self


def _made(make: Callable[[int, int], Any], features_dim: int, action_dim: int) -> Any:
    try:
        return make(features_dim, action_dim)
    except TypeError as error:
        raise TypeError(
            f"Expected `objective` to make a loss of {features_dim=} and {action_dim=}, got "
            f"{make!r}, which says: {error}. Begin it with "
            "`def __init__(self, features_dim, action_dim):`, also if it has use for neither."
        ) from error
