"""RL Zoo's PPO on Atari with an `InfoNCEExtractor`: `rl_zoo3.train -conf rl_infonce.zoo.ppo`."""

from __future__ import annotations

from typing import Any

from rl_infonce.sb3 import InfoNCEExtractor

hyperparams: dict[str, dict[str, Any]] = {
    "atari": {
        "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"],
        "frame_stack": 4,
        "policy": "CnnPolicy",
        "n_envs": 8,
        "n_steps": 128,
        "n_epochs": 4,
        "batch_size": 256,
        "n_timesteps": 1e7,
        "learning_rate": "lin_2.5e-4",
        "clip_range": "lin_0.1",
        "vf_coef": 0.5,
        "ent_coef": 0.01,
        "policy_kwargs": {
            "features_extractor_class": InfoNCEExtractor,
            "net_arch": [],  # as SB3 does for NatureCNN, so that coefficient 0 is its baseline
        },
    }
}
"""What `rl_zoo3.train` looks up: for every Atari game, the arguments of environment and model."""
