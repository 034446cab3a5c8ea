"""Trainings that are killed and go on, and all that their next step depends on."""

import random
import shutil
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from rl_infonce import InfoNCECallback
from rl_infonce.resuming.model_state import get_run_state
from rl_infonce.resuming.resume_callback import ResumeCallback
from tests.files.test_state_file import assert_same

N_STEPS = 192


class KilledError(BaseException):
    """Nothing catches it, as nothing catches a SIGKILL."""


class Killer(BaseCallback):
    """Ends the process at a step; it is gone when the run goes on."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            raise KilledError
        return True


class Snapshot(BaseCallback):
    """Copies the folder at a step: what a SIGKILL then would leave on the disk."""

    def __init__(self, source: Path, target: Path, step: int) -> None:
        super().__init__()
        self.source, self.target, self.step = source, target, step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step and not self.target.exists():
            shutil.copytree(self.source, self.target)
        return True


def scramble() -> None:
    """Leave the process's random streams where a new process would have them: elsewhere."""
    random.seed()
    np.random.seed()  # noqa: NPY002
    torch.seed()


def learn(model: BaseAlgorithm, run: ResumeCallback, *others: BaseCallback, n: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn(n - model.num_timesteps, callback=[*others, run], reset_num_timesteps=False)


def everything(model: BaseAlgorithm) -> dict[str, Any]:
    """Return a copy of all that the next step depends on, but for what is of the time of day."""
    state = get_run_state(model)
    buffer = getattr(model, "replay_buffer", None)
    arrays = {} if buffer is None else vars(buffer)
    state["replay"] = {n: a for n, a in arrays.items() if isinstance(a, np.ndarray)}
    del state["counters"]["_num_timesteps_at_start"], state["logger"], state["callbacks"]
    return dict(timeless_copy(state))


def timeless_copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: timeless_copy(v) for k, v in tree.items() if k not in ("t", "episode_times")}
    if isinstance(tree, list | tuple | deque):
        return [timeless_copy(each) for each in tree]
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def others(mode: str) -> list[BaseCallback]:
    if mode == "scheduled":
        return [InfoNCECallback("lin_0.1", decoupled=True, n_updates=2)]
    return [InfoNCECallback(decoupled=True, n_updates=2)] if mode == "decoupled" else []


def assert_goes_on_exactly(
    build: Callable[[], BaseAlgorithm],
    folder: Path,
    kills: Sequence[int],
    n_steps: int,
    mode: str = "",
) -> None:
    """Assert that trainings which were killed at these steps end as the one that was not."""
    whole, run = build(), ResumeCallback(folder / "whole", save_freq=30)
    killed = {at: Snapshot(folder / "whole", folder / str(at), at) for at in kills}
    learn(whole, run, *others(mode), *killed.values(), n=n_steps)
    expected = everything(whole)
    for killed_at, snapshot in killed.items():
        scramble()
        again, run = build(), ResumeCallback(snapshot.target, save_freq=30)
        assert run.restore(again)
        assert 0 < killed_at - again.num_timesteps <= 60
        learn(again, run, *others(mode), n=n_steps)
        assert run.is_exact
        assert_same(everything(again), expected)


def pendulum(n_envs: int = 2) -> Any:
    return VecNormalize(make_vec_env("Pendulum-v1", n_envs, seed=3))
