"""What `pairs_from="auto"` takes: RL's minibatch wherever it serves, else pairs that are drawn."""

import warnings
from typing import Any

import pytest
from stable_baselines3.common.base_class import BaseAlgorithm

from rl_infonce import InfoNCECallback
from tests.further import further
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    VECTOR_ALGORITHMS,
    assert_same_weights,
    policy_kwargs,
)


def trained(name: str, pairs_from: str, worlds: Any = ALGORITHMS, **settings: Any) -> BaseAlgorithm:
    kwargs = policy_kwargs(pairs_from=pairs_from, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*are not in its buffer")
        model: BaseAlgorithm = worlds[name](kwargs).learn(N_STEPS)
    return model


@pytest.mark.parametrize("name", ["PPO", further("A2C"), further("MaskablePPO")])
def test_auto_takes_the_minibatch_of_on_policy_algorithms(name: str) -> None:
    few = {"n_pairs": 4}
    auto, minibatch, buffer = (
        trained(name, source, **few) for source in ("auto", "minibatch", "buffer")
    )
    assert_same_weights(auto.policy, minibatch.policy)
    with pytest.raises(AssertionError):
        assert_same_weights(auto.policy, buffer.policy)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("PPO", {"n_pairs": 64}),
        ("PPO", {"augmentation": "random_shift"}),
        further("PPO", {"horizons": (4, 5)}),
        further("PPO", {"isolated": True}),
        further("RecurrentPPO", {}),
        ("DQN", {}),
    ],
)
def test_auto_draws_elsewhere_without_a_word(name: str, settings: dict[str, Any]) -> None:
    auto, buffer = (trained(name, source, **settings) for source in ("auto", "buffer"))
    assert_same_weights(auto.policy, buffer.policy)


@pytest.mark.parametrize(
    ("settings", "callback"), [({}, {"decoupled": True}), ({"auto_bind": False}, {})]
)
def test_auto_draws_where_a_callback_stands_for_the_minibatch(
    settings: dict[str, Any], callback: dict[str, Any]
) -> None:
    auto, buffer = (
        ALGORITHMS["PPO"](policy_kwargs(pairs_from=source, **settings)).learn(
            N_STEPS, callback=InfoNCECallback(**callback)
        )
        for source in ("auto", "buffer")
    )
    assert_same_weights(auto.policy, buffer.policy)


@pytest.mark.slow
def test_auto_draws_for_isolated_encoders_of_vectors() -> None:
    auto, buffer = (trained("PPO", source, VECTOR_ALGORITHMS) for source in ("auto", "buffer"))
    assert_same_weights(auto.policy, buffer.policy)
