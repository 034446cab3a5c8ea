"""PPO and DQN on an Atari game with RL Zoo's settings and an `InfoNCEExtractor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from rl_infonce.atari import make_atari_vec_env
from rl_infonce.pixel_encoder import PixelEncoder
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.sb3.pretrained import use_encoder

__all__ = ["ALGORITHMS", "make_atari_model"]

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "dqn": DQN}
_N_STEPS = 128


def make_atari_model(
    algorithm: str,
    game: str,
    *,
    n_timesteps: int,
    n_envs: int,
    seed: int,
    device: str,
    extractor: Mapping[str, Any],
    encoder: PixelEncoder | None = None,
    freeze: bool = False,
) -> BaseAlgorithm:
    """Return an untrained model; RL Zoo's settings where nothing is said.

    Args:
        algorithm: "ppo" or "dqn".
        game: Any spelling `resolve_game` understands.
        n_timesteps: Agent steps it will train; DQN's buffer holds as many at most, and its warm-up
            takes a tenth of them at most, where RL Zoo fixes 100,000 for both.
        n_envs: Games played at once.
        seed: Of weights, games and pairs.
        device: Of the model.
        extractor: Arguments of `InfoNCEExtractor`.
        encoder: Pretrained, whose architecture and weights are taken over.
        freeze: Whether its weights stay.

    Raises:
        ValueError: If an argument is out of range or the encoder does not fit.
        TypeError: If an argument has the wrong type.
    """
    given = dict(extractor)
    if encoder is not None:
        given |= {"encoder": encoder.encoder, "features_dim": encoder.features_dim}
    model = ALGORITHMS[algorithm](
        "CnnPolicy",
        make_atari_vec_env(game, n_envs, seed=seed),
        policy_kwargs={
            "features_extractor_class": InfoNCEExtractor,
            "features_extractor_kwargs": given,
            "net_arch": [],  # as SB3 does for NatureCNN, so that coefficient 0 is its baseline
        },
        device=device,
        seed=seed,
        **_SETTINGS[algorithm](n_timesteps, n_envs),
    )
    if encoder is not None:
        use_encoder(model, encoder, freeze=freeze)
    return model


def _ppo_settings(_n_timesteps: int, n_envs: int) -> dict[str, Any]:
    return {
        "n_steps": _N_STEPS,
        "batch_size": min(256, _N_STEPS * n_envs),
        "n_epochs": 4,
        "learning_rate": LinearSchedule(2.5e-4, 0.0, 1.0),
        "clip_range": LinearSchedule(0.1, 0.0, 1.0),
        "vf_coef": 0.5,
        "ent_coef": 0.01,
    }


def _dqn_settings(n_timesteps: int, n_envs: int) -> dict[str, Any]:
    return {
        "buffer_size": max(min(100_000, n_timesteps), n_envs),
        "learning_rate": 1e-4,
        "batch_size": 32,
        "learning_starts": min(100_000, n_timesteps // 10),
        "target_update_interval": 1000,
        "train_freq": 4,
        "gradient_steps": 1,
        "exploration_fraction": 0.1,
        "exploration_final_eps": 0.01,
    }


_SETTINGS = {"ppo": _ppo_settings, "dqn": _dqn_settings}
