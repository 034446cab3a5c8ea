"""Actions of a model as `collect` asks for them, against SB3's own predictions."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from rl_infonce.agents.episodes import play_episodes
from rl_infonce.agents.epsilon_greedy import epsilon_greedy_policy
from rl_infonce.agents.saved_extractor import NotRebuildableError
from rl_infonce.agents.saved_policy import read_policy
from tests.sb3.fakes import IMAGE_SHAPE, stamped_vec_env
from tests.sb3.worlds import ALGORITHMS, policy_kwargs, saved, streams

N_ACTIONS = 3


def images(n: int = 64) -> npt.NDArray[np.uint8]:
    """Return noise, from dark to bright."""
    pixels = np.random.default_rng(0).integers(0, 256, (n, *IMAGE_SHAPE))
    return (pixels * np.linspace(0, 1, n)[:, None, None, None]).astype(np.uint8)


def spread_out(model: BaseAlgorithm) -> BaseAlgorithm:
    """Let the actions of a new model differ between images: centre and scale its last layer."""
    policy: Any = model.policy
    values = getattr(policy, "q_net", getattr(policy, "quantile_net", None))
    last = policy.action_net if values is None else next(reversed(list(values.children())))[-1]
    inputs: list[torch.Tensor] = []
    hook = last.register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
    model.predict(images(), deterministic=True)
    hook.remove()
    with torch.no_grad():
        weight = torch.randn(last.weight.shape, generator=torch.Generator().manual_seed(1))
        scores = inputs[0] @ weight.T
        last.weight.copy_(weight / scores.std())
        last.bias.copy_(-scores.mean(0) / scores.std())
    return model


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "MaskablePPO", "DQN", "QRDQN"])
def test_without_chance_actions_are_the_models_own(algorithm: str) -> None:
    model = spread_out(ALGORITHMS[algorithm]())
    policy = epsilon_greedy_policy(model, 0.0, rng(), deterministic=True)
    expected = model.predict(images(), deterministic=True)[0]
    assert len(np.unique(expected)) > 1
    np.testing.assert_array_equal(policy(images()), expected)
    assert policy.n_actions == N_ACTIONS


def test_value_based_models_are_greedy_whatever_their_exploration() -> None:
    model = spread_out(ALGORITHMS["DQN"]())
    assert isinstance(model, DQN)
    model.exploration_rate = 1.0
    actions = epsilon_greedy_policy(model, 0.0, rng())(images())
    np.testing.assert_array_equal(actions, model.predict(images(), deterministic=True)[0])


@pytest.mark.slow
def test_sampled_actions_have_the_policys_probabilities() -> None:
    model = spread_out(ALGORITHMS["PPO"]())
    image = images(4)[2:3]
    policy_network: Any = model.policy
    with torch.no_grad():
        distribution = policy_network.get_distribution(torch.as_tensor(image)).distribution
    expected = distribution.probs[0].numpy()
    assert expected.min() > 0.01
    n = 20_000
    for epsilon in (0.0, 0.4):
        policy = epsilon_greedy_policy(model, epsilon, rng())
        repeated = np.repeat(image, n // 20, axis=0)
        actions = np.concatenate([policy(repeated) for _ in range(20)])
        mixed = (1 - epsilon) * expected + epsilon / N_ACTIONS
        error = np.bincount(actions, minlength=N_ACTIONS) / n - mixed
        assert (np.abs(error) < 4 * np.sqrt(mixed * (1 - mixed) / n)).all()


@pytest.mark.slow
def test_epsilon_one_is_uniform_and_seeded() -> None:
    model = spread_out(ALGORITHMS["DQN"]())
    first, second = (epsilon_greedy_policy(model, 1.0, rng())(images(3000)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert np.abs(np.bincount(first, minlength=3) / 3000 - 1 / 3).max() < 0.04


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "QRDQN"])
def test_the_models_streams_and_modes_are_left_alone(algorithm: str) -> None:
    model = ALGORITHMS[algorithm]()
    model.policy.train()
    next(model.policy.children()).eval()
    modes = [module.training for module in model.policy.modules()]
    before = streams()
    epsilon_greedy_policy(model, 0.2, rng())(images(4))
    assert streams() == before
    assert modes == [module.training for module in model.policy.modules()]


def test_observations_are_normalised_as_the_model_was_trained() -> None:
    env = VecNormalize(stamped_vec_env(2, lengths=(9, 15)))
    kwargs = policy_kwargs(NatureCNN, normalized_image=True) | {"normalize_images": False}
    model = spread_out(PPO("CnnPolicy", env, n_steps=32, policy_kwargs=kwargs, seed=0))
    env.reset()
    for _ in range(5):
        env.step(np.zeros(2, np.int64))
    normalised = env.normalize_obs(images())
    expected = model.predict(normalised, deterministic=True)[0]
    raw = epsilon_greedy_policy(model.policy, 0.0, rng(), deterministic=True)(images())
    actions = epsilon_greedy_policy(model, 0.0, rng(), deterministic=True)(images())
    np.testing.assert_array_equal(actions, expected)
    assert (raw != expected).any()


def test_images_that_the_environment_has_normalised_are_not_normalised_again() -> None:
    kwargs = policy_kwargs(NatureCNN, normalized_image=True) | {"normalize_images": False}
    env = VecNormalize(VecMonitor(stamped_vec_env(2, lengths=(9, 15))))
    model = PPO("CnnPolicy", env, n_steps=32, policy_kwargs=kwargs, seed=0)
    policy = epsilon_greedy_policy(model, 0.0, rng())
    with pytest.raises(ValueError, match=r"of type uint8.*VecNormalize.*got float32.*\.venv"):
        play_episodes(policy, env, 2)
    assert len(play_episodes(policy, env.venv, 2)) == 2
    assert len(play_episodes(epsilon_greedy_policy(model.policy, 0.0, rng()), env, 2)) == 2
    plain = VecNormalize(VecMonitor(stamped_vec_env(2, lengths=(9, 15))), norm_obs=False)
    model = PPO("CnnPolicy", plain, n_steps=32, policy_kwargs=policy_kwargs(NatureCNN), seed=0)
    assert len(play_episodes(epsilon_greedy_policy(model, 0.0, rng()), plain, 2)) == 2


@pytest.mark.parametrize(
    ("model", "changes", "error", "message"),
    [
        ("SAC", {}, TypeError, "Expected `model` to have actions 0..n-1, got Box"),
        ("RecurrentPPO", {}, ValueError, "to have no memory, got a recurrent policy"),
        ("model.zip", {}, TypeError, "`model` to be an SB3 model, got str"),
        ("A2C", {"epsilon": 1.5}, ValueError, "`epsilon`"),
        ("A2C", {"deterministic": "no"}, TypeError, "`deterministic`"),
    ],
)
def test_unfit_models_and_arguments_are_named(
    model: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    built = ALGORITHMS[model]() if model in ALGORITHMS else model
    given: dict[str, Any] = {"model": built, "epsilon": 0.1, "rng": rng(), **changes}
    with pytest.raises(error, match=message):
        epsilon_greedy_policy(**given)


def test_images_of_another_shape_are_refused() -> None:
    policy = epsilon_greedy_policy(ALGORITHMS["A2C"](), 0.5, rng())
    with pytest.raises(ValueError, match=r"observe images of shape \(1, 84, 84\)"):
        policy(np.zeros((2, 1, 84, 84), np.uint8))


OTHER = policy_kwargs() | {"net_arch": [8, 5], "activation_fn": torch.nn.ReLU}
HEADS: dict[str, dict[str, Any]] = {
    "no hidden layer": policy_kwargs(),
    "default layers": {k: v for k, v in policy_kwargs().items() if k != "net_arch"},
    "other layers": OTHER,
    "separate": policy_kwargs() | {"share_features_extractor": False, "net_arch": [8]},
}


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "MaskablePPO", "DQN"])
@pytest.mark.parametrize("head", HEADS)
def test_a_saved_policy_acts_like_the_loaded_one(tmp_path: Path, algorithm: str, head: str) -> None:
    kwargs = deepcopy(HEADS[head])
    if algorithm == "DQN":
        kwargs.pop("share_features_extractor", None)
    model = spread_out(ALGORITHMS[algorithm](kwargs))
    network = read_policy(saved(tmp_path, model))
    assert (network.n_actions, network.image_shape) == (N_ACTIONS, IMAGE_SHAPE)
    assert network.is_stochastic == (algorithm != "DQN")
    for deterministic in (True, False):
        expected = epsilon_greedy_policy(model, 0.2, rng(), deterministic=deterministic)(images())
        actions = epsilon_greedy_policy(network, 0.2, rng(), deterministic=deterministic)(images())
        np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (ALGORITHMS["RecurrentPPO"], "got a recurrent policy"),
        (ALGORITHMS["SAC"], r"got actions .*Box"),
        (ALGORITHMS["QRDQN"], "got a policy without action_net and q_net"),
        (lambda: ALGORITHMS["PPO"](OTHER | {"activation_fn": torch.nn.ELU}), "layers with .*ELU"),
    ],
)
def test_policies_that_tensors_do_not_tell_are_refused(
    tmp_path: Path, build: Any, message: str
) -> None:
    path = saved(tmp_path, build())
    with pytest.raises(NotRebuildableError, match=message):
        read_policy(path)
