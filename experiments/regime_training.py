"""Trainings of a study of regimes: one file of numbers for each run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import sb3_contrib
import stable_baselines3
from regime_grids import N_WINDOWS, Grid, cells
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from state_action_critic import StateActionPolicy

from rl_infonce import InfoNCEExtractor
from rl_infonce.device import hardware_name
from rl_infonce.files.durable import replace_text
from rl_infonce.report.curves import return_curve
from rl_infonce.runs.claim import claimed
from rl_infonce.runs.software import software

OF_THE_ARM = {"extractor", "without_noise", "state_action_critic"}
"""Settings of an arm that are no arguments of the extractor."""


def train_all(grid: Grid, runs: Path, output: Path) -> None:
    """Train every run that has no file yet."""
    for seed, task, arm in cells(grid):
        path = output / f"{task}-{arm}-{seed}.json"
        with claimed(path, runs) as is_missing:
            if is_missing:
                replace_text(
                    path, json.dumps(train(grid, task, arm, seed), separators=(",", ":")) + "\n"
                )
                print(path, flush=True)


def make_model(grid: Grid, task: str, arm: Mapping[str, Any], seed: int) -> BaseAlgorithm:
    """Return an untrained agent, with an environment that keeps its episodes."""
    played = grid.unit[task] if arm.get("without_noise") else task
    env: VecEnv = make_vec_env(played, n_envs=grid.n_envs, seed=seed)
    if grid.normalize:
        env = VecNormalize(env, gamma=grid.hyperparameters.get("gamma", 0.99))
    settings = dict(grid.hyperparameters)
    if "action_noise" in settings:
        n_actions = int(np.prod(env.action_space.shape or ()))
        deviation = np.full(n_actions, settings.pop("action_noise"))
        settings["action_noise"] = NormalActionNoise(np.zeros(n_actions), deviation)
    policy_kwargs = dict(settings.pop("policy_kwargs", {}))
    if arm.get("extractor", True):
        policy_kwargs |= {
            "features_extractor_class": InfoNCEExtractor,
            "features_extractor_kwargs": {n: arm[n] for n in arm.keys() - OF_THE_ARM},
        }
    known = vars(stable_baselines3) | vars(sb3_contrib)
    policy = StateActionPolicy if arm.get("state_action_critic") else grid.policy
    model: BaseAlgorithm = known[grid.algorithm](
        policy, env, policy_kwargs=policy_kwargs, seed=seed, device="cpu", **settings
    )
    return model


def train(grid: Grid, task: str, arm: str, seed: int) -> dict[str, Any]:
    """Return the mean return in each hundredth of a training, and the last diagnostics."""
    model = make_model(grid, task, grid.arms[arm], seed)
    start, processor = time.perf_counter(), time.process_time()
    model.learn(grid.n_timesteps)
    seconds = [time.perf_counter() - start, time.process_time() - processor]
    env = model.get_env()
    assert env is not None  # noqa: S101 (it was given one)
    episodes = episodes_of(env)
    extractors = [each for each in model.policy.modules() if isinstance(each, InfoNCEExtractor)]
    return {
        "algorithm": grid.algorithm,
        "task": task,
        "arm": arm,
        "settings": grid.arms[arm],
        "seed": seed,
        "n_steps": grid.n_timesteps,
        "n_steps_done": model.num_timesteps,
        "seconds": round(seconds[0], 1),
        "processor_seconds": round(seconds[1], 1),
        "n_episodes": len(episodes),
        "curve": curve_of(episodes, grid.n_timesteps, model.num_timesteps),
        "loss": asdict(extractors[0].settings) if extractors else {},
        "last_infonce": extractors[0].last_infonce if extractors else {},
        "hardware": hardware_name(model.device),
        **software(),
    }


def episodes_of(env: VecEnv) -> list[tuple[int, float]]:
    """Return the step of all environments together at which each episode ended, and its return."""
    lengths, returns = env.env_method("get_episode_lengths"), env.env_method("get_episode_rewards")
    return sorted(
        (int(end) * env.num_envs, float(value))
        for own_lengths, own_returns in zip(lengths, returns, strict=True)
        for end, value in zip(np.cumsum(own_lengths), own_returns, strict=True)
    )


def curve_of(
    episodes: list[tuple[int, float]], n_steps: int, n_steps_done: int
) -> list[float | None]:
    """Return the mean return in each hundredth of the budget; None before the first episode ends.

    Raises:
        ValueError: If no episode ended.
    """
    if not episodes:
        raise ValueError(f"Expected an episode to end within {n_steps} steps, got none.")
    steps, returns = zip(*episodes, strict=True)
    curve = return_curve(steps, returns, n_steps, N_WINDOWS, n_steps_done=n_steps_done)
    return [None if np.isnan(each) else round(float(each), 2) for each in curve]
