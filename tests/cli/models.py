"""Untrained models of agents, and an extractor of a user's own."""

from pathlib import Path
from typing import Any

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.torch_layers import NatureCNN
from torch import Tensor

from rl_infonce import InfoNCEExtractor, make_atari_vec_env


class OwnCNN(NatureCNN):
    """A class that only its own code can rebuild."""

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(1 - observations)


def save_model(
    path: Path,
    algorithm: Any = PPO,
    *,
    game: str = "breakout",
    extractor: Any = InfoNCEExtractor,
    seed: int = 0,
    **policy: Any,
) -> Path:
    """Save a model that has not been trained."""
    env = make_atari_vec_env(game, 1)
    own = {"features_extractor_class": extractor, "features_extractor_kwargs": {"features_dim": 16}}
    settings = {"buffer_size": 10} if algorithm is DQN else {}
    model = algorithm("CnnPolicy", env, policy_kwargs={**own, **policy}, seed=seed, **settings)
    if algorithm is DQN:
        model.exploration_rate = 0.5
    model.save(path)
    env.close()
    return path
