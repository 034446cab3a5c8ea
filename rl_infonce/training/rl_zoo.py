"""RL Zoo's settings on Atari (rl-baselines3-zoo 2.9.2, hyperparams/ppo.yml and dqn.yml)."""

from __future__ import annotations

from typing import Any

from rl_infonce.hyperparameters import is_schedule, schedule_start

N_ENVS = {"ppo": 8, "dqn": 1}
PPO_SIZES: dict[str, Any] = {"n_steps": 128, "batch_size": 256, "n_epochs": 4}
PPO_SETTINGS: dict[str, Any] = {
    **PPO_SIZES,
    "learning_rate": "lin_2.5e-4",
    "clip_range": "lin_0.1",
    "vf_coef": 0.5,
    "ent_coef": 0.01,
}
DQN_SETTINGS: dict[str, Any] = {
    "buffer_size": 100_000,
    "learning_rate": 1e-4,
    "batch_size": 32,
    "learning_starts": 100_000,
    "target_update_interval": 1000,
    "train_freq": 4,
    "gradient_steps": 1,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.01,
}


def constant_ppo() -> dict[str, Any]:
    """Return the settings of PPO with the first value of each schedule throughout."""
    return {
        name: schedule_start(name, str(value)) if is_schedule(value) else value
        for name, value in PPO_SETTINGS.items()
    }
