"""Make an untrained agent with an InfoNCE extractor, on an Atari game or another environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from rl_infonce.agents.pretrained import freeze_encoder, use_encoder
from rl_infonce.atari import make_atari_vec_env
from rl_infonce.environments.ids import is_atari
from rl_infonce.environments.make_vec_env import make_vec_env, normalized
from rl_infonce.hyperparameters import is_schedule, schedule_start
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.settings import ENCODER_SETTINGS
from rl_infonce.training.algorithms import (
    Network,
    algorithm_class,
    check_actions,
    checked_hyperparameters,
    defaults_of,
    network_for,
)
from rl_infonce.training.rl_zoo import DQN_SETTINGS, PPO_SETTINGS, ROLLOUT


def make_agent(
    algorithm: str,
    task: str,
    *,
    n_timesteps: int,
    n_envs: int,
    seed: int,
    device: str,
    extractor: Mapping[str, Any],
    hyperparameters: Mapping[str, Any] | None = None,
    encoder: PixelEncoder | None = None,
    freeze: bool = False,
    normalize: bool = False,
) -> BaseAlgorithm:
    """Return an untrained model, with the usual settings where none are given.

    These are RL Zoo's for PPO and DQN on Atari games, and SB3's own otherwise. Rollouts of 2,048
    steps are those of all environments together, a replay buffer holds at most `n_timesteps`, and
    on Atari DQN's warm-up takes at most a tenth of them, where RL Zoo fixes 100,000 for both.
    `task` is a game or a Gymnasium id, and `extractor` holds arguments of `InfoNCEExtractor`; in
    hyperparameters, "lin_X" falls linearly from X. Architecture and weights of a pretrained encoder
    are taken over. With `freeze`, the encoder's weights stay as they are, pretrained or not, and
    there is no loss unless `extractor` has an `infonce_coef`. With `normalize`, vectors and rewards
    are divided by their scale, as RL Zoo does.
    """
    changes = checked_hyperparameters(algorithm, hyperparameters or {})
    given = dict(extractor)
    if encoder is not None:
        given |= _architecture(encoder, given)
    if freeze:
        given.setdefault("infonce_coef", 0.0)
    usual = usual_settings(algorithm, task, n_timesteps, n_envs)
    settings = _settings(algorithm, usual, changes, n_envs)
    env = _environment(task, n_envs, seed)
    if encoder is not None and not is_image_space(env.observation_space):
        raise ValueError(
            f"Expected `--pretrained` with observations that are images, got it with {task}, which "
            f"observes {env.observation_space}. Leave it out."
        )
    check_actions(algorithm, env.action_space, task)
    _check_masks(algorithm, env, task)
    network = network_for(algorithm, env.observation_space, task)
    if normalize:
        env = normalized(env, gamma=changes.get("gamma", defaults_of(algorithm)["gamma"]))
    try:
        model = algorithm_class(algorithm)(
            network.policy,
            env,
            policy_kwargs=_policy_kwargs(network, given),
            device=device,
            seed=seed,
            **settings,
        )
    except (AssertionError, NotImplementedError) as error:  # SB3's ways of refusing sizes
        raise ValueError(f"{algorithm.upper()} of Stable-Baselines3: {error}") from error
    if encoder is not None:
        use_encoder(model, encoder)
    if freeze:
        freeze_encoder(model)
    return model


def _architecture(encoder: PixelEncoder, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the extractor that an encoder fits; raise if others were given."""
    own = {"encoder": encoder.encoder, **asdict(encoder.form)}
    form = {name: given[name] for name in ENCODER_SETTINGS if given.get(name) is not None}
    named = given.get("encoder") or encoder.encoder
    for name, value in {"encoder": named, **asdict(replace(encoder.form, **form))}.items():
        if value != own[name]:
            raise ValueError(
                f"Expected `{name}` of the pretrained encoder, which is {own[name]!r}, got "
                f"{value!r}. Leave it out: the encoder's own is taken over."
            )
    sizes = {"encoder": encoder.encoder, "features_dim": encoder.features_dim}
    return sizes | encoder.form.changes


def _policy_kwargs(network: Network, extractor: dict[str, Any]) -> dict[str, Any]:
    layers = {} if network.net_arch is None else {"net_arch": list(network.net_arch)}
    return {
        "features_extractor_class": network.extractor,
        "features_extractor_kwargs": extractor,
        **layers,
    }


def usual_settings(algorithm: str, task: str, n_timesteps: int, n_envs: int) -> dict[str, Any]:
    """Return the hyperparameters that differ from SB3's defaults where none are given."""
    if is_atari(task) and algorithm == "ppo":
        return dict(PPO_SETTINGS)
    if is_atari(task) and algorithm == "dqn":
        return DQN_SETTINGS | {
            "buffer_size": max(min(DQN_SETTINGS["buffer_size"], n_timesteps), n_envs),
            "learning_starts": min(DQN_SETTINGS["learning_starts"], n_timesteps // 10),
        }
    every = defaults_of(algorithm)
    if "buffer_size" in every:
        return {"buffer_size": max(min(every["buffer_size"], n_timesteps), n_envs)}
    if every["n_steps"] == ROLLOUT:  # for one environment; more would leave few updates
        return {"n_steps": max(ROLLOUT // n_envs, 1)}
    return {}


def _environment(task: str, n_envs: int, seed: int) -> VecEnv:
    if is_atari(task):
        return make_atari_vec_env(task, n_envs, seed=seed)
    return make_vec_env(task, n_envs, seed=seed)


def _check_masks(algorithm: str, env: VecEnv, task: str) -> None:
    if algorithm != "ppo_mask":
        return
    from sb3_contrib.common.maskable.utils import is_masking_supported

    if not is_masking_supported(env):
        raise ValueError(
            f"Expected `--algo` ppo_mask with an environment that has action_masks(), got {task} "
            "without. Take ppo."
        )


def _settings(
    algorithm: str, usual: Mapping[str, Any], changes: Mapping[str, Any], n_envs: int
) -> dict[str, Any]:
    settings = {**usual, **changes}
    every = defaults_of(algorithm) | settings
    is_on_policy = "gae_lambda" in every  # DQN's n_steps are those of returns
    if is_on_policy and "batch_size" in every and "batch_size" not in changes:
        settings["batch_size"] = min(every["batch_size"], every["n_steps"] * n_envs)
    if settings.get("optimize_memory_usage"):  # which SB3 refuses without
        settings["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    schedules = {
        name: LinearSchedule(schedule_start(name, value), 0.0, 1.0)
        for name, value in settings.items()
        if is_schedule(value)
    }
    return settings | schedules
