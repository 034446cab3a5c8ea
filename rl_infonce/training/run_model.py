"""Make the model of a run as planned, and save it whatever happens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from rl_infonce.agents.pretrained import pixel_encoder
from rl_infonce.checks import check_number, warn_user
from rl_infonce.device import usable_device
from rl_infonce.files.durable import replace_bytes
from rl_infonce.hyperparameters import parse_hyperparameters
from rl_infonce.resuming.model_bytes import model_bytes
from rl_infonce.training.make_agent import make_agent
from rl_infonce.training.plan import TrainingPlan


def make_model(plan: TrainingPlan, pretrained: Path | None, n_timesteps: int) -> BaseAlgorithm:
    """Return the untrained model of a plan with a seed and a number of environments.

    Replay buffers and DQN's warm-up depend on the steps with which the run began.
    """
    check_number("--n-timesteps", plan.n_timesteps, at_least=1)
    check_number("--save-freq", plan.save_freq, at_least=1)
    if plan.n_envs is not None:
        check_number("--n-envs", plan.n_envs, at_least=1)
    check_number("--seed", plan.seed or 0, at_least=0, at_most=2**31 - 1)
    usable_device(plan.device)
    if plan.num_threads > 0:
        torch.set_num_threads(plan.num_threads)
    return make_agent(
        plan.algo,
        plan.task,
        n_timesteps=n_timesteps,
        n_envs=plan.n_envs or 0,
        seed=plan.seed or 0,
        device=plan.device,
        extractor=plan.of_extractor(),
        hyperparameters=parse_hyperparameters(plan.hyperparams or ()),
        encoder=None if pretrained is None else pixel_encoder(pretrained),
        freeze=plan.freeze_encoder,
        normalize=plan.normalize,
    )


def save_model(model: BaseAlgorithm, path: Path, complain: Callable[[str], object]) -> Path | None:
    """Save a model and return its file, which lies elsewhere if its place cannot be written.

    If nowhere can be written, the model is lost, as the complaint says, but for its checkpoints,
    and None is returned.
    """
    content = model_bytes(model)
    try:
        replace_bytes(path, content)
        return path
    except OSError as error:
        complain(f"{path} could not be written: {error}. Trying a temporary folder instead.")
    try:
        elsewhere = Path(tempfile.mkdtemp(prefix="rl_infonce_")) / path.name
        replace_bytes(elsewhere, content)
        return elsewhere
    except OSError as error:
        complain(f"It could not be written there: {error}. The last checkpoint is whole.")
        return None


def close_env(env: VecEnv | None) -> None:
    """Close an environment that is needed no more; what fails then is a warning."""
    try:
        if env is not None:
            env.close()
    except Exception as error:  # noqa: BLE001 (environments are anyone's)
        warn_user(f"The environment could not be closed: {type(error).__name__}: {error}")
