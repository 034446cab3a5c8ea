"""What `pairs_from="auto"` takes: RL's minibatch where this was measured, else drawn pairs."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from rl_infonce import InfoNCECallback, InfoNCEExtractor
from rl_infonce.settings import AUTO_ROWS
from tests.further import further
from tests.sb3.fakes import IMAGE_SHAPE
from tests.sb3.worlds import (
    ALGORITHMS,
    VECTOR_ALGORITHMS,
    Build,
    assert_same_weights,
    extractors_of,
    policy_kwargs,
)


def trained(name: str, pairs_from: str, n_rows: int = AUTO_ROWS, **settings: Any) -> BaseAlgorithm:
    """Return an agent of rollouts that was trained with minibatches of so many rows."""
    kwargs, changes = policy_kwargs(pairs_from=pairs_from, **settings), {"n_steps": n_rows // 2}
    if "PPO" in name:
        changes |= {"batch_size": n_rows, "n_epochs": 2}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*are not in its buffer")
        model: BaseAlgorithm = ALGORITHMS[name](kwargs, **changes).learn(2 * n_rows)
    return model


def coefs(model: BaseAlgorithm) -> set[float]:
    """Return the weight that each extractor's last update had, over `infonce_coef`."""
    found = extractors_of(model)
    return {round(each.last_infonce["coef"] / each.infonce_coef, 6) for each in found}


@pytest.mark.parametrize("name", ["PPO", further("A2C"), further("MaskablePPO")])
def test_auto_takes_large_minibatches_of_on_policy_algorithms_at_a_share_of_the_weight(
    name: str,
) -> None:
    own = 0.01
    auto, minibatch = (
        trained(name, "auto", infonce_coef=own),
        trained(name, "minibatch", infonce_coef=0.66 * own),
    )
    assert_same_weights(auto.policy, minibatch.policy)
    assert (coefs(auto), coefs(minibatch)) == ({0.66}, {1.0})
    with pytest.raises(AssertionError):
        assert_same_weights(auto.policy, trained(name, "buffer").policy)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("PPO", {"n_rows": AUTO_ROWS - 2}),
        ("PPO", {"n_pairs": AUTO_ROWS + 1}),
        further("RecurrentPPO", {}),
    ],
)
def test_auto_draws_elsewhere_without_a_word(name: str, settings: dict[str, Any]) -> None:
    auto, buffer = (trained(name, source, **settings) for source in ("auto", "buffer"))
    assert_same_weights(auto.policy, buffer.policy)
    assert coefs(auto) == {1.0}


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (ALGORITHMS["PPO"], {"max_grad_ratio": 10.0}),
        (ALGORITHMS["PPO"], {"critic": "bilinear"}),
        (ALGORITHMS["PPO"], {"predictor": "mlp"}),
        (ALGORITHMS["PPO"], {"augmentation": "random_shift"}),
        (ALGORITHMS["PPO"], {"preset": "spatial_cpc"}),
        (ALGORITHMS["PPO"], {"objective": "self_prediction"}),
        (ALGORITHMS["PPO"], {"action_conditioning": True}),
        (ALGORITHMS["PPO"], {"horizons": (4, 5)}),
        (ALGORITHMS["PPO"], {"isolated": True}),
        (ALGORITHMS["DQN"], {}),
        (VECTOR_ALGORITHMS["PPO"], {}),
        (VECTOR_ALGORITHMS["PPO"], {"preset": "cpc"}),
    ],
)
def test_auto_is_drawn_pairs_where_the_minibatch_was_not_measured(
    build: Build, settings: dict[str, Any]
) -> None:
    model = build(policy_kwargs(pairs_from="auto", **settings))
    assert {each.settings.pairs_from for each in extractors_of(model)} == {"buffer"}


def test_auto_draws_for_an_off_policy_algorithm_that_its_extractor_did_not_know() -> None:
    def of_ready_extractors(source: str) -> BaseAlgorithm:
        space = spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)
        settings: dict[str, Any] = {"n_pairs": 16, "pairs_from": source, "seed": 0}
        torch.manual_seed(0)
        ready = iter([InfoNCEExtractor(space, 32, **settings) for _ in range(2)])
        kwargs = {"features_extractor_class": lambda _: next(ready), "net_arch": []}
        model = ALGORITHMS["DQN"](kwargs, batch_size=AUTO_ROWS, learning_starts=100)
        assert {each.settings.pairs_from for each in extractors_of(model)} == {source}
        return model.learn(120)

    auto, buffer = map(of_ready_extractors, ("auto", "buffer"))
    assert_same_weights(auto.policy, buffer.policy)
    assert coefs(auto) == {1.0}


@pytest.mark.parametrize(
    ("settings", "callback"), [({}, {"decoupled": True}), ({"auto_bind": False}, {})]
)
def test_auto_draws_where_a_callback_stands_for_the_minibatch(
    settings: dict[str, Any], callback: dict[str, Any]
) -> None:
    auto, buffer = (
        ALGORITHMS["PPO"](
            policy_kwargs(pairs_from=source, **settings), n_steps=128, batch_size=AUTO_ROWS
        ).learn(2 * AUTO_ROWS, callback=InfoNCECallback(**callback))
        for source in ("auto", "buffer")
    )
    assert_same_weights(auto.policy, buffer.policy)
