"""A policy that is cloned outside of `learn` reads vectors on the scale that it has later."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize

from rl_infonce import InfoNCEExtractor
from rl_infonce.agents import count_vectors
from tests.sb3.fakes import StampedVectorEnv, stamped_vec_env
from tests.sb3.test_combined import TwoSensors, build, kwargs_of
from tests.sb3.worlds import VECTOR_ALGORITHMS, extractors_of, policy_kwargs, streams

WARNING = "before the encoder has counted any vectors"
SCALE = torch.tensor([1.0, 4.0, 15.0, 1.0, 1.0])
RAW = SCALE * torch.from_numpy(np.random.default_rng(0).random((64, 5), np.float32))


def new_ppo(learning_rate: float = 3e-4, **settings: Any) -> PPO:
    env = stamped_vec_env(2, StampedVectorEnv, lengths=(9, 15), continuous=False)
    kwargs = policy_kwargs(**settings)
    sizes: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 1}
    return PPO("MlpPolicy", env, learning_rate, policy_kwargs=kwargs, seed=0, **sizes)


def clone(model: PPO) -> None:
    _, log_prob, _ = model.policy.evaluate_actions(RAW, torch.zeros(len(RAW)))
    (-log_prob.mean()).backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("infonce_coef", [0.0, 0.01])
@pytest.mark.parametrize("mode", [False, True])
def test_cloning_before_the_first_learn_is_told_once(mode: bool, infonce_coef: float) -> None:
    model = new_ppo(infonce_coef=infonce_coef)
    model.policy.set_training_mode(mode)
    with pytest.warns(UserWarning, match=WARNING):
        clone(model)
    clone(model)


@pytest.mark.parametrize("infonce_coef", [0.0, 0.01])
def test_with_demonstrations_counted_or_after_learn_nothing_is_told(infonce_coef: float) -> None:
    counted, trained = new_ppo(infonce_coef=infonce_coef), new_ppo(infonce_coef=infonce_coef)
    before = streams()
    count_vectors(counted, RAW.numpy())
    assert streams() == before
    clone(counted)
    trained.learn(192)
    clone(trained)


@pytest.mark.parametrize("name", [name for name in VECTOR_ALGORITHMS if name != "CrossQ"])
@pytest.mark.parametrize("infonce_coef", [0.0, 0.01])
def test_no_algorithm_that_trains_is_told(name: str, infonce_coef: float) -> None:
    model = VECTOR_ALGORITHMS[name](policy_kwargs(infonce_coef=infonce_coef))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.learn(80)
    assert not [each for each in told if WARNING in str(each.message)]


def test_looks_at_the_policy_are_not_told() -> None:
    model = new_ppo()
    model.predict(RAW.numpy())
    with torch.no_grad():
        model.policy(RAW)
    asking = RAW.clone().requires_grad_()
    value: Any = model.policy.predict_values(asking).sum()
    value.backward()  # saliency
    assert asking.grad is not None


def change_in_first_learn(n_rows: int, n_epochs: int = 1) -> float:
    """Return how far a rollout of 64 rows moves features of a baseline that cannot train."""
    model = new_ppo(infonce_coef=0.0, learning_rate=0.0)
    model.n_epochs = n_epochs
    if n_rows:
        count_vectors(model, np.resize(RAW.numpy(), (n_rows, 5)))
    (extractor,) = extractors_of(model)
    before = extractor(RAW.clone().requires_grad_()).detach()
    model.learn(64)
    count = extractor.get_submodule("normalizer").get_buffer("running_count")
    assert float(count) == n_rows + 64 * n_epochs
    return float((extractor(RAW).detach() - before)[:, 5:].abs().mean())


def test_without_the_loss_rollouts_change_features_of_few_demonstrations_only() -> None:
    uncounted, few, many = (change_in_first_learn(n_rows) for n_rows in (0, 64, 2048))
    assert many < 0.3 * uncounted
    assert many < 0.3 * few
    assert few < change_in_first_learn(64, n_epochs=4)


def test_an_isolated_encoder_without_a_model_does_not_train_and_says_so() -> None:
    model = new_ppo()
    policy = ActorCriticPolicy(
        model.observation_space,
        model.action_space,
        lambda _: 1e-3,
        features_extractor_class=InfoNCEExtractor,
    )
    with pytest.warns(UserWarning, match=r"isolated encoder.*does not train at all"):
        policy.evaluate_actions(RAW, torch.zeros(len(RAW)))


@pytest.mark.parametrize("infonce_coef", [0.0, 0.01])
def test_every_network_counts(infonce_coef: float) -> None:
    model: BaseAlgorithm = VECTOR_ALGORITHMS["SAC"](policy_kwargs(infonce_coef=infonce_coef))
    count_vectors(model.policy, RAW.numpy())
    found = [each for each in model.policy.modules() if isinstance(each, InfoNCEExtractor)]
    assert len(found) == 3  # the target critic's also
    for extractor in found:
        torch.testing.assert_close(extractor.encoder.means, RAW.mean(dim=0))
    with pytest.raises(ValueError, match=r"`vectors` of shape \[B, \*\(5,\)\], got \(64, 4\)"):
        count_vectors(model, RAW[:, :4].numpy())


@pytest.mark.parametrize("normalizes", [False, True])
def test_each_vector_of_a_dictionary_is_counted_by_its_own_encoder(normalizes: bool) -> None:
    model = build("PPO", TwoSensors, kwargs_of(isolated=True), kind=StampedVectorEnv)
    raw = RAW.numpy()
    vectors = {"joints": raw, "twice": 2 * raw, "gear": np.full(len(raw), 3)}
    around: Any = None
    if normalizes:
        env: Any = model.get_env()
        around = VecNormalize(env, norm_obs_keys=["joints"])
        around.obs_rms["joints"].mean += 1
    count_vectors(model, vectors, vec_normalize=around)
    extractors: Any = model.policy.features_extractor.extractors
    seen = (RAW - 1).clamp(-10, 10) if normalizes else RAW
    torch.testing.assert_close(extractors["joints"].encoder.means, seen.mean(dim=0))
    torch.testing.assert_close(extractors["twice"].encoder.means, 2 * RAW.mean(dim=0))


def test_vectors_of_another_form_than_the_observations_are_refused() -> None:
    model = build("PPO", TwoSensors, kwargs_of(isolated=True), kind=StampedVectorEnv)
    raw = RAW.numpy()
    with pytest.raises(ValueError, match=r"`vectors` to be a mapping of .*'twice'.* got an array"):
        count_vectors(model, raw)
    with pytest.raises(ValueError, match=r"got a mapping of \['joints'\]"):
        count_vectors(model, {"joints": raw})
    with pytest.raises(ValueError, match=r"`vectors\['twice'\]` of shape .* got \(64, 4\)"):
        count_vectors(model, {"joints": raw, "twice": raw[:, :4], "gear": np.zeros(64, int)})
    with pytest.raises(ValueError, match=r"`vectors` to be an array, .* got a mapping of \['x'\]"):
        count_vectors(new_ppo(), {"x": raw})
