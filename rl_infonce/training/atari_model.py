"""Make PPO and DQN on an Atari game with RL Zoo's settings and an `InfoNCEExtractor`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from rl_infonce.agents.pretrained import freeze_encoder, use_encoder
from rl_infonce.atari import make_atari_vec_env
from rl_infonce.checks import check_choice
from rl_infonce.hyperparameters import is_schedule, schedule_start
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.settings import ENCODER_SETTINGS
from rl_infonce.training.rl_zoo import DQN_SETTINGS, PPO_SETTINGS

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "dqn": DQN}
_OURS = {"policy", "env", "policy_kwargs", "seed", "device", "verbose", "tensorboard_log"}
_SCHEDULED = {"learning_rate", "clip_range", "clip_range_vf"}


def make_atari_model(
    algorithm: str,
    game: str,
    *,
    n_timesteps: int,
    n_envs: int,
    seed: int,
    device: str,
    extractor: Mapping[str, Any],
    hyperparameters: Mapping[str, Any] | None = None,
    encoder: PixelEncoder | None = None,
    freeze: bool = False,
) -> BaseAlgorithm:
    """Return an untrained model, with RL Zoo's settings where none are given.

    DQN's buffer holds at most `n_timesteps`, and its warm-up takes at most a tenth of them, where
    RL Zoo fixes 100,000 for both. `extractor` holds arguments of `InfoNCEExtractor`; in
    hyperparameters, "lin_X" falls linearly from X. Architecture and weights of a pretrained encoder
    are taken over. With `freeze`, the encoder's weights stay as they are, pretrained or not, and
    there is no loss unless `extractor` has an `infonce_coef`.
    """
    changes = dict(hyperparameters or {})
    check_hyperparameters(algorithm, changes)
    given = dict(extractor)
    if encoder is not None:
        given |= _architecture(encoder, given)
    if freeze:
        given.setdefault("infonce_coef", 0.0)
    env = make_atari_vec_env(game, n_envs, seed=seed)
    try:
        model = ALGORITHMS[algorithm](
            "CnnPolicy",
            env,
            policy_kwargs={
                "features_extractor_class": InfoNCEExtractor,
                "features_extractor_kwargs": given,
                "net_arch": [],  # as SB3 does for NatureCNN, so that coefficient 0 is its baseline
            },
            device=device,
            seed=seed,
            **_settings(algorithm, n_timesteps, n_envs, changes),
        )
    except AssertionError as error:  # SB3's way of refusing sizes
        raise ValueError(f"{algorithm.upper()} of Stable-Baselines3: {error}") from error
    if encoder is not None:
        use_encoder(model, encoder)
    if freeze:
        freeze_encoder(model)
    return model


def _architecture(encoder: PixelEncoder, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the extractor that an encoder fits; raise if others were given."""
    asked = {name: given[name] for name in ENCODER_SETTINGS if given.get(name) is not None}
    for name, value in asdict(replace(encoder.form, **asked)).items():
        own = getattr(encoder.form, name)
        if value != own:
            raise ValueError(
                f"Expected `{name}` of the pretrained encoder, which is {own!r}, got {value!r}. "
                "Leave it out: the encoder's own is taken over."
            )
    sizes = {"encoder": encoder.encoder, "features_dim": encoder.features_dim}
    return sizes | encoder.form.changes


def check_hyperparameters(algorithm: str, hyperparameters: Mapping[str, Any]) -> None:
    """Raise unless an algorithm has hyperparameters of these names; SB3 checks their values."""
    known = set(inspect.signature(ALGORITHMS[algorithm]).parameters) - _OURS
    legal = {name for name in known if not name.startswith("_") and "buffer_" not in name}
    for name, value in hyperparameters.items():
        check_choice("hyperparameter", name, sorted(legal | {"buffer_size"} & known))
        if name in _SCHEDULED and isinstance(value, str):
            schedule_start(name, value)
        elif is_schedule(value):
            raise ValueError(f"Expected a schedule of {sorted(_SCHEDULED)} only, got {name!r}.")


def _settings(
    algorithm: str, n_timesteps: int, n_envs: int, changes: Mapping[str, Any]
) -> dict[str, Any]:
    usual = PPO_SETTINGS if algorithm == "ppo" else _dqn_settings(n_timesteps, n_envs)
    settings = usual | dict(changes)
    if algorithm == "ppo" and "batch_size" not in changes:  # DQN's n_steps are those of returns
        settings["batch_size"] = min(settings["batch_size"], settings["n_steps"] * n_envs)
    for name in _SCHEDULED & settings.keys():
        if isinstance(settings[name], str):
            settings[name] = LinearSchedule(schedule_start(name, settings[name]), 0.0, 1.0)
    return settings


def _dqn_settings(n_timesteps: int, n_envs: int) -> dict[str, Any]:
    return DQN_SETTINGS | {
        "buffer_size": max(min(DQN_SETTINGS["buffer_size"], n_timesteps), n_envs),
        "learning_starts": min(DQN_SETTINGS["learning_starts"], n_timesteps // 10),
    }
