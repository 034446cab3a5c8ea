"""RL Zoo's DQN on Atari with an `InfoNCEExtractor`: `rl_zoo3.train -conf rl_infonce.zoo.dqn`."""

from __future__ import annotations

from typing import Any

from rl_infonce.sb3 import InfoNCEExtractor

hyperparams: dict[str, dict[str, Any]] = {
    "atari": {
        "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"],
        "frame_stack": 4,
        "policy": "CnnPolicy",
        "n_timesteps": 1e7,
        "buffer_size": 100_000,
        "learning_rate": 1e-4,
        "batch_size": 32,
        "learning_starts": 100_000,
        "target_update_interval": 1000,
        "train_freq": 4,
        "gradient_steps": 1,
        "exploration_fraction": 0.1,
        "exploration_final_eps": 0.01,
        "optimize_memory_usage": False,
        "policy_kwargs": {
            "features_extractor_class": InfoNCEExtractor,
            "net_arch": [],  # as SB3 does for NatureCNN, so that coefficient 0 is its baseline
        },
    }
}
"""What `rl_zoo3.train` looks up: for every Atari game, the arguments of environment and model."""
