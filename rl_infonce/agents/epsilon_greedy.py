"""A model's actions for a batch of images, replaced by random ones with probability epsilon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from rl_infonce.agents.features import acting_network
from rl_infonce.agents.saved_policy import SavedPolicyNetwork
from rl_infonce.checks import check_flag, check_number
from rl_infonce.probing.features import evaluating


class EpsilonGreedyPolicy:
    """A function from uint8 images [B, C, H, W] to actions [B]: the model's, or uniform ones.

    `epsilon_greedy_policy` makes it. If the model's environment normalises observations, it
    takes the images as they are before that.
    """

    def __init__(
        self,
        scores: Callable[[npt.NDArray[np.uint8]], Tensor],
        n_actions: int,
        epsilon: float,
        rng: np.random.Generator,
        *,
        image_shape: tuple[int, ...] | None,
        is_sampling: bool,
    ) -> None:
        self.n_actions = n_actions
        self.image_shape = image_shape
        self._scores = scores
        self._epsilon = epsilon
        self._rng = rng
        self._is_sampling = is_sampling

    def __call__(self, observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Return one action per observation."""
        with torch.no_grad():
            scores = self._scores(observations).cpu().double().numpy()  # [B, n_actions]
        if self._is_sampling:  # the largest of logits plus Gumbel noise is a draw of the softmax
            scores = scores + self._rng.gumbel(size=scores.shape)
        is_random = self._rng.random(len(scores)) < self._epsilon
        uniform = self._rng.integers(self.n_actions, size=len(scores))
        return np.where(is_random, uniform, scores.argmax(axis=1))

    def predict(
        self, observation: Any, *_args: Any, **_kwargs: Any
    ) -> tuple[npt.NDArray[np.int64], None]:
        """Return actions and no state, as SB3's `evaluate_policy` expects."""
        return self(observation), None


def epsilon_greedy_policy(
    model: BaseAlgorithm | BasePolicy | SavedPolicyNetwork,
    epsilon: float,
    rng: np.random.Generator,
    *,
    deterministic: bool = False,
) -> EpsilonGreedyPolicy:
    """Return a model's policy as a function of observations, for `rl_infonce.atari.collect`.

    Anand et al. 2019 collect with the action a PPO agent samples, replaced by a uniform one with
    probability 0.2. All random numbers come from `rng`: the streams of torch, numpy and Gymnasium
    are left alone, and every module stays in its mode. The function follows the model's training.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from stable_baselines3.common.envs import FakeImageEnv
        >>> env = FakeImageEnv(screen_height=84, screen_width=84, n_channels=4, channel_first=True)
        >>> policy = epsilon_greedy_policy(PPO("CnnPolicy", env), 0.2, np.random.default_rng(0))
        >>> policy(np.zeros((3, 4, 84, 84), np.uint8)).shape
        (3,)

    Args:
        model: An algorithm, its policy, or what `read_policy` returns; its actions are discrete.
        epsilon: Probability of a uniform action, in [0, 1].
        rng: Source of all random numbers.
        deterministic: Whether to take the most probable action instead of sampling. Value-based
            models (DQN, QR-DQN) take the best action in any case.

    Raises:
        TypeError: If an argument has the wrong type, or the actions are not discrete.
        ValueError: If `epsilon` is out of range, or the policy is recurrent or gives no scores of
            the actions.
    """
    check_number("epsilon", epsilon, at_least=0.0, at_most=1.0)
    check_flag("deterministic", deterministic)
    image_shape: tuple[int, ...] | None
    if isinstance(model, SavedPolicyNetwork):
        n_actions, is_stochastic = model.n_actions, model.is_stochastic
        image_shape = model.image_shape
    else:
        policy = _checked_policy(model)
        assert isinstance(policy.action_space, spaces.Discrete)  # noqa: S101 (checked above)
        n_actions, is_stochastic = int(policy.action_space.n), _value_network(policy) is None
        image_shape = policy.observation_space.shape
    return EpsilonGreedyPolicy(
        _scores_of(model),
        n_actions,
        epsilon,
        rng,
        image_shape=image_shape,
        is_sampling=is_stochastic and not deterministic,
    )


def _checked_policy(model: BaseAlgorithm | BasePolicy) -> BasePolicy:
    policy = model if isinstance(model, BasePolicy) else getattr(model, "policy", None)
    if not isinstance(policy, BasePolicy):
        raise TypeError(f"Expected `model` to be an SB3 model, got {type(model).__name__}.")
    if not isinstance(policy.action_space, spaces.Discrete) or policy.action_space.start != 0:
        raise TypeError(f"Expected `model` to have actions 0..n-1, got {policy.action_space}.")
    if hasattr(policy, "lstm_actor"):
        raise ValueError(
            "Expected `model` to have no memory, got a recurrent policy, whose state must be "
            "carried from call to call. Pass a function of your own that does so."
        )
    if not hasattr(policy, "get_distribution") and _value_network(policy) is None:
        raise ValueError(
            "Expected `model` to have an actor or values of the actions, got "
            f"{type(policy).__name__}. Pass a function of your own."
        )
    return policy


def _value_network(policy: BasePolicy) -> Callable[[Any], Tensor] | None:
    network: Any = acting_network(policy)
    if hasattr(policy, "q_net"):  # DQN
        return lambda observations: network(observations)
    if hasattr(policy, "quantile_net"):  # QR-DQN: [B, n_quantiles, n_actions]
        return lambda observations: network(observations).mean(dim=1)
    return None


def _check_raw(images: npt.NDArray[Any], statistics: VecNormalize) -> None:
    raw = statistics.venv.observation_space.dtype
    if images.dtype != raw:
        raise ValueError(
            f"Expected images of type {raw}, which the model's VecNormalize normalises here, got "
            f"{images.dtype}: the images are normalised already. Play in an environment without "
            "VecNormalize, such as model.get_vec_normalize_env().venv."
        )


def _scores_of(
    model: BaseAlgorithm | BasePolicy | SavedPolicyNetwork,
) -> Callable[[npt.NDArray[np.uint8]], Tensor]:
    """Return the function from images to logits or values of the actions, [B, n_actions]."""
    if isinstance(model, SavedPolicyNetwork):
        return lambda images: model(torch.as_tensor(images))

    def scores(images: npt.NDArray[np.uint8]) -> Tensor:
        policy = model if isinstance(model, BasePolicy) else model.policy
        statistics = None if isinstance(model, BasePolicy) else model.get_vec_normalize_env()
        observations: Any = images
        if statistics is not None:
            _check_raw(images, statistics)
            observations = statistics.normalize_obs(images)
        if observations.shape[1:] != policy.observation_space.shape:
            raise ValueError(
                f"Expected `model` to observe images of shape {observations.shape[1:]}, as "
                f"make_atari_vec_env gives them, got a model for {policy.observation_space.shape}."
            )
        with evaluating(policy):
            inputs: Any = policy.obs_to_tensor(observations)[0]
            values = _value_network(policy)
            if values is not None:
                return values(inputs)
            actor_critic: Any = policy
            logits: Tensor = actor_critic.get_distribution(inputs).distribution.logits
            return logits

    return scores
