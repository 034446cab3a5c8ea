"""Updates of an isolated encoder that would never come are told, or come with the callback."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import A2C, PPO

from rl_infonce import InfoNCECallback, InfoNCEExtractor
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
    with pytest.warns(UserWarning, match="Fewer than two pairs"):
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
