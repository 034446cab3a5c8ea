"""Catch gradients that are not finite before an optimizer applies them, and such weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch.optim import Optimizer

from rl_infonce.checks import check_choice, warn_user

_MOST_SKIPPED = 10
"""Updates of one optimizer in a row that are left out; the next bad one stops the training."""


class NanGuardCallback(BaseCallback):
    """Stop, or leave out an update, when a gradient is NaN or infinite.

    The callback checks every gradient of every optimizer of the model in the hook that torch calls
    before a step: the weights are still those of the last update. A bad loss of RL also shows
    there. Gradients of the InfoNCE loss do not: where they are not finite, the loss leaves them out
    with a warning, of isolated encoders also, which an Adam of their own trains, and stops the
    training at the 100th in a row, whatever `on_nan` says.

    Args:
        on_nan: "stop" raises FloatingPointError; "skip" leaves the update out with a warning, up to
            ten of one optimizer in a row.

    Attributes:
        n_skipped: Number of updates left out.

    Raises:
        ValueError: If `on_nan` is out of range.
        FloatingPointError: In training, as `on_nan` says.
    """

    def __init__(self, *, on_nan: str = "stop") -> None:
        super().__init__()
        check_choice("on_nan", on_nan, ("stop", "skip"))
        self.on_nan = on_nan
        self.n_skipped = 0
        self._n_in_a_row: dict[int, int] = {}  # skipped updates by the optimizer's id
        self._hooks: list[Any] = []
        self._learn: float | None = None

    def _on_training_start(self) -> None:
        self._remove_hooks()  # an interrupted learn() left them
        self._learn = self.model.start_time
        self._hooks = [
            each.register_step_pre_hook(self._before_step) for each in _optimizers(self.model)
        ]

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self.model.start_time != self._learn:
            return  # also of an interrupted learn(): a hook cannot remove itself and go on
        groups = optimizer.param_groups
        parameters = [p for group in groups for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in parameters]
        if not gradients or bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients))):
            self._n_in_a_row.pop(id(optimizer), None)
            return
        bad = self._bad_names(parameters)
        n_in_a_row = self._n_in_a_row.get(id(optimizer), 0)
        message = (
            f"Expected finite gradients in update {self.model._n_updates} at step "
            f"{self.model.num_timesteps}, got NaN or infinity in {len(bad)} of "
            f"{len(gradients)} tensors, first in {bad[0] if bad else 'their norm'}."
        )
        if self.on_nan == "stop" or n_in_a_row >= _MOST_SKIPPED:
            self._remove_hooks()
            raise FloatingPointError(
                f"{message} The weights are those before this update. Lower the learning rate or "
                "infonce_coef, or look for NaN in observations and rewards."
            )
        self.n_skipped += 1
        self._n_in_a_row[id(optimizer)] = n_in_a_row + 1
        for parameter in parameters:
            parameter.grad = None  # optimizers pass over parameters without a gradient
        warn_user(f"{message} This update is left out.", RuntimeWarning)

    def _bad_names(self, parameters: list[Any]) -> list[str]:
        names = {id(p): name for name, p in self.model.policy.named_parameters()}
        bad = [p for p in parameters if not bool(torch.isfinite(p.grad).all())]
        return [names.get(id(p), "a parameter outside the policy") for p in bad]


def check_finite(model: BaseAlgorithm, *, has_checkpoint: bool) -> None:
    """Raise unless all weights of a model's policy are finite, and no buffer is NaN.

    A buffer may hold -inf on purpose, as masks of attention do.
    """
    policy = model.policy
    weights = {name for name, _ in policy.named_parameters(remove_duplicate=False)}
    for name, tensor in policy.state_dict().items():
        is_bad = torch.isnan(tensor) if name not in weights else ~torch.isfinite(tensor)
        if is_bad.any():
            way_out = (
                "The last checkpoint is kept; resume from it" if has_checkpoint else "Train anew"
            )
            raise FloatingPointError(
                f"Expected finite weights at step {model.num_timesteps}, got NaN or infinity in "
                f"{name}. {way_out} with a lower learning rate."
            )


def _optimizers(model: BaseAlgorithm) -> Iterator[Optimizer]:
    """Yield each optimizer of a model and of the modules it consists of, once."""
    seen: set[int] = set()
    for owner in (model, *model.policy.modules()):
        for value in vars(owner).values():
            if isinstance(value, Optimizer) and id(value) not in seen:
                seen.add(id(value))
                yield value
