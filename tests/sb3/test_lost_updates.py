"""Updates of an isolated encoder that would never come are told, or come with the callback."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.logger import configure

from rl_infonce import InfoNCECallback, InfoNCEExtractor
from rl_infonce.sb3 import make_updates_due, trained_extractors
from tests.sb3.fakes import StampedVectorEnv, stamped_vec_env
from tests.sb3.worlds import extractors_of, n_updates

WARNING = "the InfoNCE loss has trained nothing of it"


def env(*, continuous: bool = True) -> Any:
    return stamped_vec_env(2, StampedVectorEnv, lengths=(9, 15), continuous=continuous)


def new_ppo(**settings: Any) -> PPO:
    kwargs = {"features_extractor_class": InfoNCEExtractor, "features_extractor_kwargs": settings}
    return PPO(
        "MlpPolicy", env(), n_steps=32, batch_size=32, n_epochs=1, policy_kwargs=kwargs, seed=0
    )


def has_told(step: Callable[[], object]) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=f".*{WARNING}")
        step()
    told = [each for each in caught if WARNING in str(each.message)]
    assert len(told) <= 1
    return bool(told)


@pytest.mark.parametrize("with_callback", [False, True])
def test_learns_of_one_rollout_between_files_train_with_the_callback(
    with_callback: bool, tmp_path: Path
) -> None:
    model, path = new_ppo(), tmp_path / "model.zip"
    for session in range(3):
        callback = InfoNCECallback() if with_callback else None
        told = has_told(lambda now=model, given=callback: now.learn(64, callback=given))  # type: ignore[misc]
        assert told == (session > 0 and not with_callback)
        assert (n_updates(model) > 0) == with_callback
        model.save(path)
        model = PPO.load(path, env=env())


def test_where_there_are_no_pairs_no_update_is_missed() -> None:
    bandit = stamped_vec_env(2, StampedVectorEnv, lengths=(1, 1), continuous=True)
    kwargs = {"features_extractor_class": InfoNCEExtractor}
    model = PPO("MlpPolicy", bandit, n_steps=32, batch_size=32, n_epochs=1, policy_kwargs=kwargs)
    with pytest.warns(UserWarning, match="goes on, on an encoder that it does not train either"):
        model.learn(128)
    assert not has_told(lambda: model.learn(64, reset_num_timesteps=False))


@pytest.mark.parametrize("settings", [{"infonce_coef": 0.0}, {"isolated": False}])
def test_encoders_that_rl_trains_are_not_missed(settings: dict[str, Any]) -> None:
    model = new_ppo(**settings)
    assert not has_told(lambda: model.learn(64))
    assert not has_told(lambda: model.learn(64))


def test_a_weight_that_the_callback_brings_to_a_baseline_misses_nothing() -> None:
    model = new_ppo(infonce_coef=0.0)
    model.learn(64)
    assert not has_told(lambda: model.learn(64, callback=InfoNCECallback(0.01)))
    assert n_updates(model) > 0


@pytest.mark.parametrize("settings", [{}, {"isolated": False}])
def test_the_policy_of_a_living_model_trains_with_another(settings: dict[str, Any]) -> None:
    first, second = new_ppo(**settings), new_ppo(**settings)
    first.learn(192)
    second.policy = first.policy
    before = n_updates(second)
    second.learn(192)
    assert n_updates(second) > before
    (extractor,) = extractors_of(second)
    assert extractor._session.algorithm is second
    first.learn(192)
    assert extractor._session.algorithm is first


def test_a_schedule_that_rises_and_falls_has_its_whole_rate_at_its_peak() -> None:
    shares: list[float] = []
    model = new_ppo()
    (extractor,) = extractors_of(model)
    steer = extractor.steer

    def noting(**given: Any) -> None:
        shares.append(given.get("share", 1.0))
        steer(**given)

    extractor.steer = noting  # type: ignore[method-assign]
    callback = InfoNCECallback(lambda remaining: 0.16 * remaining * (1 - remaining))
    model.learn(640, callback=callback)
    assert max(shares[:-1]) == pytest.approx(1.0)  # the last one is of the end
    assert min(shares[:-1]) == pytest.approx(0.0)


@pytest.mark.parametrize(("n_steps", "is_few"), [(5, True), (64, False)])
def test_rollouts_of_few_pairs_are_told(n_steps: int, is_few: bool) -> None:
    kwargs = {"features_extractor_class": InfoNCEExtractor}
    model = A2C("MlpPolicy", env(), n_steps=n_steps, policy_kwargs=kwargs, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=".*hold few pairs")
        model.learn(12 * 2 * n_steps)
    told = [str(each.message) for each in caught if "hold few pairs" in str(each.message)]
    assert len(told) == is_few
    if is_few:
        assert "of A2C hold few pairs" in told[0]
        assert "of n_pairs=256" in told[0]


class OfflineSAC(SAC):
    def learn(self, total_timesteps: int, *_: Any, **__: Any) -> Any:
        self._setup_learn(total_timesteps)
        for _step in range(total_timesteps):
            self.train(1, self.batch_size)
        return self


class WithoutModes(PPO):
    def collect_rollouts(
        self, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int
    ) -> bool:
        fill_rollout(self)
        self.num_timesteps += n_rollout_steps * env.num_envs
        return True


def fill_rollout(model: PPO) -> None:
    buffer, venv = model.rollout_buffer, model.get_env()
    assert venv is not None
    observations: Any = venv.reset()
    buffer.reset()
    starts = np.ones(len(observations))
    while not buffer.full:
        with torch.no_grad():
            actions, values, log_probs = model.policy(torch.as_tensor(observations))
        found, rewards, dones, _ = venv.step(actions.numpy())
        buffer.add(observations, actions.numpy(), rewards, starts, values, log_probs)
        observations, starts = found, dones
    buffer.compute_returns_and_advantage(values.flatten(), dones)


def test_an_offline_algorithm_is_told_in_its_first_learn() -> None:
    kwargs = {"features_extractor_class": InfoNCEExtractor}
    first = SAC("MlpPolicy", env(), learning_starts=300, policy_kwargs=kwargs, seed=0).learn(200)
    model = OfflineSAC("MlpPolicy", env(), batch_size=16, policy_kwargs=kwargs, seed=0)
    model.replay_buffer = first.replay_buffer
    assert has_told(lambda: model.learn(3))
    assert n_updates(model) == 0
    make_updates_due(model)
    assert n_updates(model) > 0
    assert not has_told(lambda: model.learn(3))


def test_rollouts_of_ones_own_that_set_no_mode_are_told_in_the_first_learn() -> None:
    kwargs = {"features_extractor_class": InfoNCEExtractor}
    sizes: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 1}
    model = WithoutModes("MlpPolicy", env(), policy_kwargs=kwargs, seed=0, **sizes)
    assert not has_told(lambda: model.learn(64))
    model = WithoutModes("MlpPolicy", env(), policy_kwargs=kwargs, seed=0, **sizes)
    assert has_told(lambda: model.learn(192))
    assert n_updates(model) == 0


def test_a_replay_buffer_that_still_fills_misses_nothing() -> None:
    kwargs = {"features_extractor_class": InfoNCEExtractor}
    bandit = stamped_vec_env(1, StampedVectorEnv, lengths=(1, 1), continuous=True)
    model = SAC("MlpPolicy", bandit, learning_starts=2, policy_kwargs=kwargs, seed=0)
    assert not has_told(lambda: model.learn(8))
    assert model._n_updates > 0
    assert n_updates(model) == 0


@pytest.mark.parametrize("isolated", [True, False])
def test_a_loop_without_learn_trains_by_the_two_calls_that_the_page_names(isolated: bool) -> None:
    space = env().action_space
    model = new_ppo(auto_bind=False, isolated=isolated, action_space=space)
    model.set_logger(configure(None, []))
    for extractor in trained_extractors(model.policy):
        extractor.bind(model)
    for _ in range(3):
        model.policy.set_training_mode(False)
        fill_rollout(model)
        model.num_timesteps += 64
        model.train()
        make_updates_due(model)
    assert n_updates(model) > 0
