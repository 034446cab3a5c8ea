"""An agent that goes on under a `VecNormalize` without its statistics is told so."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from rl_infonce import InfoNCECombinedExtractor, InfoNCEExtractor
from tests.further import further
from tests.sb3.fakes import StampedDictEnv, StampedEnv, StampedVectorEnv, stamped_vec_env

WARNING = "has counted none of the observations from then"
N_STEPS = 64


def normalized(*, continuous: bool, **settings: Any) -> VecNormalize:
    env = stamped_vec_env(2, StampedVectorEnv, lengths=(9, 15), continuous=continuous)
    return VecNormalize(env, **settings)


ALGORITHMS: dict[str, tuple[type[BaseAlgorithm], dict[str, Any]]] = {
    "PPO": (PPO, {"n_steps": 16, "batch_size": 16, "n_epochs": 1}),
    "SAC": (SAC, {"learning_starts": 20, "buffer_size": 200, "batch_size": 16}),
    "DQN": (DQN, {"learning_starts": 20, "buffer_size": 200, "batch_size": 16}),
}


def new_model(name: str, env: VecEnv) -> BaseAlgorithm:
    algorithm, settings = ALGORITHMS[name]
    kwargs = {"features_extractor_class": InfoNCEExtractor}
    return algorithm("MlpPolicy", env, policy_kwargs=kwargs, seed=0, **settings)


def n_told(*steps: Callable[[], object]) -> int:
    """Return how often some steps warn of lost statistics."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=f".*{WARNING}")
        for step in steps:
            step()
    told = [each for each in caught if WARNING in str(each.message)]
    assert {each.filename for each in told} <= {__file__}, "not the user's own line"
    return len(told)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("reset_num_timesteps", [further(True), False])
def test_statistics_that_are_lost_are_missed_once(
    name: str, reset_num_timesteps: bool, tmp_path: Path
) -> None:
    continuous = name == "SAC"

    def learn(model: BaseAlgorithm) -> Callable[[], object]:
        return lambda: model.learn(N_STEPS, reset_num_timesteps=reset_num_timesteps)

    model = new_model(name, normalized(continuous=continuous))
    assert n_told(learn(model), learn(model)) == 0
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=normalized(continuous=continuous))
    assert n_told(learn(loaded)) == 1
    assert n_told(learn(loaded)) == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_statistics_that_are_kept_are_not_missed(name: str, tmp_path: Path) -> None:
    env = normalized(continuous=name == "SAC")
    model = new_model(name, env).learn(N_STEPS)
    model.save(tmp_path / "model")
    env.save(str(tmp_path / "statistics"))
    fresh = normalized(continuous=name == "SAC").venv
    kept = VecNormalize.load(str(tmp_path / "statistics"), fresh)
    loaded = type(model).load(tmp_path / "model", env=kept)
    assert n_told(lambda: loaded.learn(N_STEPS)) == 0


def test_statistics_that_are_frozen_are_not_missed() -> None:
    env = normalized(continuous=False)
    env.reset()
    for _ in range(3):
        env.step(np.zeros(2, dtype=np.int64))
    env.training = False
    model = new_model("PPO", env)
    assert n_told(lambda: model.learn(N_STEPS), lambda: model.learn(N_STEPS)) == 0


def test_an_environment_without_statistics_misses_none(tmp_path: Path) -> None:
    rewards_alone = normalized(continuous=False, norm_obs=False)
    model = new_model("PPO", rewards_alone).learn(N_STEPS)
    model.save(tmp_path / "model")
    for env in (rewards_alone.venv, normalized(continuous=False, norm_obs=False)):
        loaded = PPO.load(tmp_path / "model", env=env)
        assert n_told(partial(loaded.learn, N_STEPS)) == 0


def test_statistics_of_a_dictionarys_entry_are_missed(tmp_path: Path) -> None:
    def env() -> VecNormalize:
        return VecNormalize(DummyVecEnv([lambda: StampedDictEnv(StampedEnv())]))

    kwargs = {"features_extractor_class": InfoNCECombinedExtractor}
    model = PPO("MultiInputPolicy", env(), n_steps=16, batch_size=16, policy_kwargs=kwargs)
    assert n_told(lambda: model.learn(32)) == 0
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=env())
    assert n_told(lambda: loaded.learn(16)) == 1
