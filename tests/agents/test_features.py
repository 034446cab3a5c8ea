"""feature_function: the features that the agent acts on, of every algorithm."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import Tensor, nn

from rl_infonce import InfoNCEExtractor
from rl_infonce.agents.features import (
    acting_extractor,
    check_observes,
    feature_function,
    untrained_policy,
)
from tests.sb3.fakes import IMAGE_SHAPE, stamped_vec_env
from tests.sb3.worlds import ALGORITHMS, assert_same_weights, noise_images, policy_kwargs

IMAGES = noise_images(5)


def _acted_on(model: BaseAlgorithm) -> list[Tensor]:
    """Return what the extractor puts out while the model acts on `IMAGES`."""
    seen: list[Tensor] = []
    hook = acting_extractor(model.policy).register_forward_hook(
        lambda _module, _inputs, output: seen.append(output.detach())
    )
    model.predict(IMAGES.numpy(), deterministic=True)
    hook.remove()
    return seen


@pytest.mark.parametrize("extractor", [NatureCNN, InfoNCEExtractor])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "CrossQ"])
def test_features_are_those_the_agent_acts_on(name: str, extractor: type[NatureCNN]) -> None:
    model = ALGORITHMS[name](policy_kwargs(extractor))
    (acted_on,) = _acted_on(model)
    assert acted_on.shape == (5, 32)
    torch.testing.assert_close(feature_function(model)(IMAGES), acted_on)
    torch.testing.assert_close(feature_function(model.policy)(IMAGES), acted_on)


def test_unshared_extractors_give_the_actors_features() -> None:
    kwargs = policy_kwargs(NatureCNN) | {"share_features_extractor": False}
    model = ALGORITHMS["PPO"](kwargs)
    policy: Any = model.policy
    expected = policy.pi_features_extractor(IMAGES.float() / 255).detach()
    torch.testing.assert_close(feature_function(model)(IMAGES), expected)


class _Dropping(NatureCNN):
    """Has a part that differs between modes, a part that is always in evaluation mode."""

    def __init__(self, space: spaces.Box, features_dim: int = 8) -> None:
        super().__init__(space, features_dim)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(features_dim).eval()

    def forward(self, observations: Tensor) -> Tensor:
        dropped: Tensor = self.drop(super().forward(observations))
        return dropped


def test_every_module_keeps_its_mode_and_nothing_is_drawn() -> None:
    kwargs = {"features_extractor_class": _Dropping}
    model = PPO("CnnPolicy", stamped_vec_env(1), policy_kwargs=kwargs, device="cpu", seed=0)
    extractor: Any = acting_extractor(model.policy)
    extractor.train()
    extractor.frozen.eval()
    modes = [module.training for module in model.policy.modules()]
    stream = torch.get_rng_state()
    features = feature_function(model)
    torch.testing.assert_close(features(IMAGES), features(IMAGES))
    assert not features(IMAGES).requires_grad
    assert [module.training for module in model.policy.modules()] == modes
    assert torch.equal(torch.get_rng_state(), stream)


def test_modes_come_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(NatureCNN))
    extractor = model.policy.features_extractor
    extractor.train()

    def fail(_observations: Tensor) -> Tensor:
        raise RuntimeError("no features today")

    monkeypatch.setattr(extractor, "forward", fail)
    with pytest.raises(RuntimeError, match="no features today"):
        feature_function(model)(IMAGES)
    assert all(module.training for module in extractor.modules())


def test_infonce_neither_computes_its_loss_nor_draws_pairs() -> None:
    model = ALGORITHMS["PPO"]().learn(32)
    extractor: Any = model.policy.features_extractor
    extractor.train()
    state, last = extractor._session.rng.bit_generator.state, dict(extractor.last_infonce)
    feature_function(model)(IMAGES)
    assert extractor._session.rng.bit_generator.state == state
    assert extractor.last_infonce == last
    assert extractor.training


def test_images_are_normalised_as_the_environment_does() -> None:
    env = VecNormalize(stamped_vec_env(2), norm_reward=False)
    kwargs = policy_kwargs(NatureCNN) | {"normalize_images": False}
    kwargs["features_extractor_kwargs"]["normalized_image"] = True
    model = PPO("CnnPolicy", env, policy_kwargs=kwargs, n_steps=8, batch_size=16, seed=0).learn(16)
    check_observes(model, IMAGE_SHAPE)
    policy: Any = model.policy
    normalized = torch.as_tensor(env.normalize_obs(IMAGES.numpy()))
    expected = policy.features_extractor(normalized).detach()
    torch.testing.assert_close(feature_function(model)(IMAGES), expected)


def test_features_of_dictionaries_are_refused_in_words() -> None:
    space = spaces.Dict(speed=spaces.Box(-1.0, 1.0, (3,)))
    model = PPO("MultiInputPolicy", _Observing(space), device="cpu")
    with pytest.raises(ValueError, match=r"one image or vector, got Dict\("):
        feature_function(model)(torch.zeros(1, 3))


def test_channels_last_environments_are_probed_channels_first() -> None:
    env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=4, channel_first=False)
    model = PPO("CnnPolicy", env, policy_kwargs=policy_kwargs(NatureCNN))
    check_observes(model, (4, 36, 36))
    assert feature_function(model)(IMAGES).shape == (5, 32)
    with pytest.raises(ValueError, match=r"\[B, \*\(4, 36, 36\)\], got \(5, 36, 36, 4\)"):
        feature_function(model)(IMAGES.permute(0, 2, 3, 1))


def test_rewards_that_are_normalised_below_a_transposition_are_no_observations() -> None:
    env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=4, channel_first=False)
    normalized = VecNormalize(DummyVecEnv([lambda: env]), norm_obs=False)
    model = PPO("CnnPolicy", normalized, policy_kwargs=policy_kwargs(NatureCNN))
    check_observes(model, (4, 36, 36))
    plain = model.policy.features_extractor(IMAGES.float() / 255).detach()
    torch.testing.assert_close(feature_function(model)(IMAGES), plain)


@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC", "QRDQN", "RecurrentPPO"])
def test_an_untrained_policy_is_another_draw_of_the_same_network(name: str) -> None:
    model = ALGORITHMS[name]()
    stream = torch.get_rng_state()
    untrained = untrained_policy(model, seed=3)
    assert torch.equal(torch.get_rng_state(), stream)
    assert_same_weights(untrained, untrained_policy(model, seed=3))
    ours = acting_extractor(untrained).state_dict()
    theirs = acting_extractor(model.policy).state_dict()
    assert {name: t.shape for name, t in ours.items()} == {n: t.shape for n, t in theirs.items()}
    assert not torch.equal(ours["cnn.0.weight"], theirs["cnn.0.weight"])
    # the same distribution: PPO's orthogonal rows have length sqrt(2), DQN's are much shorter
    norms = [weights["cnn.2.weight"].norm() for weights in (ours, theirs)]
    torch.testing.assert_close(*norms, rtol=0.02, atol=0.0)


class _Observing(gym.Env[Any, Any]):
    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space


VECTORS = spaces.Box(-1.0, 1.0, (8,), np.float32)
FLOATS = spaces.Box(0.0, 1.0, IMAGE_SHAPE, np.float32)


@pytest.mark.parametrize(
    ("env", "shape", "error", "message"),
    [
        (_Observing(VECTORS), IMAGE_SHAPE, ValueError, r"images \(4, 36, 36\).*got \(8,\)"),
        (
            _Observing(spaces.Discrete(3)),
            IMAGE_SHAPE,
            TypeError,
            r"images \(4, 36, 36\), got Discrete\(3\)",
        ),
        (_Observing(FLOATS), IMAGE_SHAPE, ValueError, "got float32"),
        (
            VecNormalize(DummyVecEnv([lambda: _Observing(FLOATS)]), norm_obs=False),
            IMAGE_SHAPE,
            ValueError,
            "got float32",
        ),
        (stamped_vec_env(1), (3, 36, 36), ValueError, r"\(3, 36, 36\).*got \(4, 36, 36\)"),
        (stamped_vec_env(1), IMAGE_SHAPE, ValueError, "got FlattenExtractor"),
    ],
)
def test_models_that_see_something_else_are_refused(
    env: gym.Env[Any, Any] | DummyVecEnv, shape: tuple[int, int, int], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        check_observes(PPO("MlpPolicy", env, device="cpu"), shape)
