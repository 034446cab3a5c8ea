"""Untrained models of agents on images, and an extractor of a user's own."""

from pathlib import Path
from typing import Any

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.torch_layers import NatureCNN
from torch import Tensor

from rl_infonce import InfoNCEExtractor

EXPLORATION = 0.25
"""The exploration rate of saved models of DQN."""


class OwnCNN(NatureCNN):
    """NatureCNN's tensors with another forward, which only its own code can rebuild."""

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(1 - observations)


def save_model(
    path: Path,
    algorithm: Any = PPO,
    *,
    n_actions: int = 6,
    size: int = 84,
    extractor: Any = InfoNCEExtractor,
    seed: int = 0,
    n_timesteps: int = 0,
    **policy: Any,
) -> Path:
    """Save a model of four images of this size, which is untrained whatever its steps say.

    Pong has six actions.
    """
    env = FakeImageEnv(n_actions, size, size, n_channels=4, channel_first=True)
    own = {"features_extractor_class": extractor, "features_extractor_kwargs": {"features_dim": 8}}
    settings = {"buffer_size": 10} if algorithm is DQN else {"n_steps": 8, "batch_size": 8}
    model = algorithm("CnnPolicy", env, policy_kwargs={**own, **policy}, seed=seed, **settings)
    if algorithm is DQN:
        model.exploration_rate = EXPLORATION
    model.num_timesteps = n_timesteps
    model.save(path)
    return path
