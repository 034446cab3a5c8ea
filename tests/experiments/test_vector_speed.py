"""The speed of training on vectors: each arm takes its turns, and ratios are those of a round."""

import pytest

from rl_infonce import InfoNCEExtractor
from tests.experiments.loading import load

script = load("benchmarks/vector_speed.py")


@pytest.mark.parametrize(("arm", "coef"), [("same_network", 0.0), ("infonce", 0.01)])
def test_arms_are_what_they_are_called(arm: str, coef: float) -> None:
    extractor = script.build("SAC", arm, "Pendulum-v1").policy.actor.features_extractor
    assert isinstance(extractor, InfoNCEExtractor)
    assert extractor.infonce_coef == coef
    stock = script.build("SAC", "stock", "Pendulum-v1").policy.actor.features_extractor
    assert not isinstance(stock, InfoNCEExtractor)


@pytest.mark.thorough
def test_every_arm_has_a_turn_in_every_round() -> None:
    measured = script.compare("SAC", "Pendulum-v1", 60, rounds=2)
    assert set(script.ARMS) <= measured["steps_per_second"].keys()
    assert all(len(turns) == 2 for turns in measured["steps_per_second"].values())
    assert min(min(turns) for turns in measured["steps_per_second"].values()) > 0


def test_ratios_are_those_of_a_round() -> None:
    turns = {"stock": [10.0, 100.0, 10.0], "same_network": [5.0, 80.0, 5.0], "infonce": [4, 60, 4]}
    table = script.table({"measured": [{"algorithm": "SAC", "steps_per_second": turns}]})
    assert "| SAC | infonce | 4 | 0.40 | 0.40 to 0.60 | 0.80 |" in table
