"""What `pairs_from="auto"` takes: RL's minibatch where this was measured, else drawn pairs."""

import warnings
from typing import Any

import pytest
from stable_baselines3.common.base_class import BaseAlgorithm

from rl_infonce import InfoNCECallback
from rl_infonce.settings import AUTO_ROWS
from tests.further import further
from tests.sb3.worlds import (
    ALGORITHMS,
    VECTOR_ALGORITHMS,
    assert_same_weights,
    extractors_of,
    policy_kwargs,
)


def trained(
    name: str, pairs_from: str, worlds: Any = ALGORITHMS, n_rows: int = AUTO_ROWS, **settings: Any
) -> BaseAlgorithm:
    """Return an agent that was trained with minibatches of so many rows, if it takes rollouts."""
    kwargs, changes = policy_kwargs(pairs_from=pairs_from, **settings), {"n_steps": n_rows // 2}
    if "PPO" in name:
        changes |= {"batch_size": n_rows, "n_epochs": 2}
    changes = {} if name in ("DQN", "SAC") else changes
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*are not in its buffer")
        model: BaseAlgorithm = worlds[name](kwargs, **changes).learn(2 * n_rows)
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
        ("PPO", {"max_grad_ratio": 10.0}),
        further("PPO", {"critic": "bilinear"}),
        further("PPO", {"predictor": "mlp"}),
        ("PPO", {"augmentation": "random_shift"}),
        ("PPO", {"preset": "spatial_cpc"}),
        further("PPO", {"objective": "self_prediction"}),
        further("PPO", {"action_conditioning": True}),
        further("PPO", {"horizons": (4, 5)}),
        further("PPO", {"isolated": True}),
        further("RecurrentPPO", {}),
        ("DQN", {}),
    ],
)
def test_auto_draws_elsewhere_without_a_word(name: str, settings: dict[str, Any]) -> None:
    auto, buffer = (trained(name, source, **settings) for source in ("auto", "buffer"))
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


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"preset": "cpc"}])
def test_auto_draws_for_vectors(settings: dict[str, Any]) -> None:
    auto, buffer = (
        trained("PPO", source, VECTOR_ALGORITHMS, **settings) for source in ("auto", "buffer")
    )
    assert_same_weights(auto.policy, buffer.policy)
    assert extractors_of(auto)[0].settings.pairs_from == "buffer"
