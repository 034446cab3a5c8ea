"""A training with an encoder of vectors that was killed is, to the last bit, one that was not."""

from itertools import product, starmap
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env

from rl_infonce.resuming.resume_callback import ResumeCallback
from tests.further import further, with_further
from tests.resuming.killing import assert_goes_on_exactly, learn, pendulum
from tests.sb3.worlds import (
    RELATIVES,
    VECTOR_ALGORITHMS,
    assert_same_weights,
    extractors_of,
    policy_kwargs,
)

KINDS: dict[str, dict[str, Any]] = {
    "isolated": {"isolated": True},
    "averaged targets": {"isolated": True, "target_encoder_tau": 0.05},
    "read at once": {"isolated": True, "policy_encoder_tau": 1.0},
    "joint": {"isolated": False},
}


def build(name: str, **settings: Any) -> BaseAlgorithm:
    kwargs = policy_kwargs(**settings)
    given: dict[str, Any] = {"policy_kwargs": kwargs, "seed": 1}
    if name == "PPO":
        kwargs["share_features_extractor"] = False
        return PPO("MlpPolicy", pendulum(), n_steps=32, batch_size=32, n_epochs=2, **given)
    if name == "A2C":
        return A2C("MlpPolicy", pendulum(), **given)
    given |= {"learning_starts": 50, "batch_size": 16, "buffer_size": 300}
    if name == "DQN":
        games = make_vec_env("CartPole-v1", 1, seed=3)
        return DQN("MlpPolicy", games, target_update_interval=40, **given)
    return SAC("MlpPolicy", pendulum(1), train_freq=4, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("PPO", "isolated"), ("PPO", "joint"), ("SAC", "isolated"), further("SAC", "joint")),
        *starmap(further, product(("PPO", "SAC"), ("averaged targets", "read at once"))),
        *starmap(further, product(("A2C", "DQN"), KINDS)),
    ],
)
def test_killed_and_restored_equals_uninterrupted(name: str, kind: str, tmp_path: Path) -> None:
    def make() -> BaseAlgorithm:
        return build(name, **KINDS[kind])

    assert_goes_on_exactly(make, tmp_path, [100, 150], 192)


@pytest.mark.thorough
@pytest.mark.slow
def test_tests_of_inputs_are_made_where_they_would_have_been(tmp_path: Path) -> None:
    def make() -> BaseAlgorithm:
        rounds: dict[str, Any] = {"train_freq": 20, "gradient_steps": 20, "learning_starts": 50}
        kwargs = policy_kwargs(select_inputs=True)
        return SAC(
            "MlpPolicy", pendulum(1), buffer_size=500, policy_kwargs=kwargs, seed=1, **rounds
        )

    assert_goes_on_exactly(make, tmp_path, [340, 380], 430)
    model = make()
    model.learn(430)
    assert _decided_at(model) > 300


def _decided_at(model: BaseAlgorithm) -> int:
    selection = getattr(extractors_of(model)[0].own_updates, "selection", None)
    assert selection is not None
    return int(selection.decided_at)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", with_further(["TD3", "TQC", "CrossQ", "MaskablePPO", "RecurrentPPO"], RELATIVES)
)
def test_relatives_are_restored_also(name: str, tmp_path: Path) -> None:
    def make() -> BaseAlgorithm:
        return VECTOR_ALGORITHMS[name](policy_kwargs(isolated=True))

    last, n_steps = (180, 192) if "PPO" in name else (120, 132)
    assert_goes_on_exactly(make, tmp_path, [last], n_steps)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_moments_and_counters_are_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    model = build(name, isolated=True)
    learn(model, ResumeCallback(tmp_path, save_freq=16), n=128)
    again, run = build(name, isolated=True), ResumeCallback(tmp_path, save_freq=16)
    assert run.restore(again)
    learn(again, run, n=again.num_timesteps + 1)
    (own, *_) = extractors_of(again)
    assert own.own_updates is not None
    moments = own.own_updates.adam
    counts = own._session.counts
    assert int(moments.get_buffer("n_steps").max()) == counts.n_updates > 3
    assert all(moments.get_buffer(f"mean_{index}").any() for index in range(4))
    assert counts.n_host_updates > 0


@pytest.mark.parametrize("name", ["PPO", further("SAC")])
def test_a_longer_budget_goes_on_where_a_whole_run_would_be(name: str, tmp_path: Path) -> None:
    """The updates after the last ones of RL read a rollout that no checkpoint holds."""
    whole = build(name, isolated=True)
    learn(whole, ResumeCallback(tmp_path / "whole", save_freq=1000), n=192)
    first = build(name, isolated=True)
    learn(first, ResumeCallback(tmp_path / "parts", save_freq=1000), n=128)
    rest, run = build(name, isolated=True), ResumeCallback(tmp_path / "parts", save_freq=1000)
    assert run.restore(rest)
    assert rest.num_timesteps == 128
    learn(rest, run, n=192)
    assert_same_weights(rest.policy, whole.policy)
