"""The bar of a training in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import safe_mean
from tqdm import tqdm


class ProgressBar(BaseCallback):
    """Moves a bar with each step, and shows the latest mean return beside rate and time left.

    Args:
        bar: What is moved, from the steps that are trained already to all of them.
    """

    def __init__(self, bar: tqdm[None]) -> None:
        super().__init__()
        self.bar = bar

    def _on_step(self) -> bool:
        self.bar.total = max(self.bar.total, self.num_timesteps)
        self.bar.update(self.num_timesteps - self.bar.n)
        return True

    def _on_rollout_end(self) -> None:
        episodes = self.model.ep_info_buffer
        if episodes:
            mean = safe_mean([episode["r"] for episode in episodes])
            self.bar.set_postfix({"return": f"{mean:.4g}"}, refresh=False)


def last_step(model: BaseAlgorithm, n_timesteps: int) -> int:
    """Return the step at which a training of `n_timesteps` ends, as rollouts are made whole."""
    if not isinstance(model, OnPolicyAlgorithm):
        return n_timesteps
    size = model.n_steps * model.n_envs
    n_rollouts = -(-(n_timesteps - model.num_timesteps) // size)
    return model.num_timesteps + n_rollouts * size


@contextmanager
def progress_bar(model: BaseAlgorithm, n_timesteps: int) -> Iterator[ProgressBar]:
    """Yield the callback of a bar on stderr, which is whole however the training ends.

    Args:
        model: What is trained, from where it is.
        n_timesteps: Agent steps in all.
    """
    n_done, n_all = model.num_timesteps, last_step(model, n_timesteps)
    # By the mean rate, as nothing moves while a rollout is trained on.
    with tqdm(total=n_all, initial=n_done, unit="step", smoothing=0, dynamic_ncols=True) as bar:
        yield ProgressBar(bar)
