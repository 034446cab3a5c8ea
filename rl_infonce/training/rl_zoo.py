"""RL Zoo's names of algorithms, and its settings on Atari (rl-baselines3-zoo 2.9.2)."""

from __future__ import annotations

from typing import Any

from rl_infonce.hyperparameters import is_schedule, schedule_start

_SB3, _CONTRIB = "stable_baselines3", "sb3_contrib"
_ON_POLICY = {
    "ppo": (_SB3, "PPO"),
    "a2c": (_SB3, "A2C"),
    "ppo_mask": (_CONTRIB, "MaskablePPO"),
    "ppo_lstm": (_CONTRIB, "RecurrentPPO"),
    "trpo": (_CONTRIB, "TRPO"),
}
_OFF_POLICY = {
    "dqn": (_SB3, "DQN"),
    "sac": (_SB3, "SAC"),
    "td3": (_SB3, "TD3"),
    "qrdqn": (_CONTRIB, "QRDQN"),
    "tqc": (_CONTRIB, "TQC"),
    "crossq": (_CONTRIB, "CrossQ"),
}
ALGORITHMS: dict[str, tuple[str, str]] = {**_ON_POLICY, **_OFF_POLICY}
"""Package and class of each algorithm, which are imported where they are needed."""
N_ENVS = {**dict.fromkeys(_ON_POLICY, 8), **dict.fromkeys(_OFF_POLICY, 1)}
ROLLOUT = 2048
"""Steps of a rollout of PPO, MaskablePPO and TRPO by default."""
# hyperparams/ppo.yml and dqn.yml, "atari"
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
USUAL_HYPERPARAMETERS = (
    *PPO_SETTINGS,
    *DQN_SETTINGS,
    "gamma",
    "gae_lambda",
    "max_grad_norm",
    "target_kl",
    "normalize_advantage",
    "use_sde",
    "tau",
    "policy_delay",
)
"""Arguments of an algorithm that users of SB3 change."""


def constant_ppo() -> dict[str, Any]:
    """Return the settings of PPO with the first value of each schedule throughout."""
    return {
        name: schedule_start(name, str(value)) if is_schedule(value) else value
        for name, value in PPO_SETTINGS.items()
    }
