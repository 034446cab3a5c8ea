"""What the policy sees of a vector by default, which the kind of algorithm decides."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.sac.policies import SACPolicy

from rl_infonce import InfoNCEExtractor
from rl_infonce.agents.features import untrained_policy
from tests.further import further
from tests.sb3.worlds import VECTOR_ALGORITHMS, extractors_of

OFF_POLICY = {"DQN", "SAC", "TD3", "QRDQN", "TQC", "CrossQ"}


def default_kwargs(**settings: Any) -> dict[str, Any]:
    return {
        "features_extractor_class": InfoNCEExtractor,
        "features_extractor_kwargs": {"with_observation": None, **settings},
        "net_arch": [8],
    }


@pytest.mark.parametrize("name", VECTOR_ALGORITHMS)
def test_the_algorithm_decides_what_its_policy_sees_of_a_vector(name: str) -> None:
    model = VECTOR_ALGORITHMS[name](default_kwargs())
    on_policy = name not in OFF_POLICY
    for extractor in extractors_of(model):
        assert extractor.settings.with_observation is on_policy
        assert extractor.settings.select_inputs is on_policy
        assert extractor.features_dim == 64 + 5 * on_policy


@pytest.mark.parametrize("name", ["PPO", "SAC", further("MaskablePPO"), further("TQC")])
def test_a_policy_alone_is_built_as_in_its_algorithm(name: str, tmp_path: Path) -> None:
    model = VECTOR_ALGORITHMS[name](default_kwargs())
    untrained = untrained_policy(model, seed=0)
    model.policy.save(str(tmp_path / "policy.zip"))
    loaded = type(model.policy).load(str(tmp_path / "policy.zip"))
    for policy in (untrained, loaded):
        assert policy.state_dict().keys() == model.policy.state_dict().keys()


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_what_is_given_stands_whatever_the_algorithm(name: str) -> None:
    for sees, selects in product((False, True), repeat=2):
        kwargs = default_kwargs(with_observation=sees, select_inputs=selects)
        extractor = extractors_of(VECTOR_ALGORITHMS[name](kwargs))[0]
        assert extractor.settings.with_observation is sees
        assert extractor.settings.select_inputs is selects


def test_without_a_policy_or_isolation_the_observation_is_seen() -> None:
    space = spaces.Box(-1.0, 1.0, (5,))
    alone = InfoNCEExtractor(space, action_space=spaces.Discrete(2))
    assert alone.settings.with_observation
    joint = VECTOR_ALGORITHMS["SAC"](default_kwargs(preset="cpc"))
    settings = extractors_of(joint)[0].settings
    assert settings.with_observation
    assert not settings.select_inputs


def test_the_algorithm_counts_and_not_what_its_policy_offers() -> None:
    class Evaluating(SACPolicy):
        def evaluate_actions(self) -> None:
            """Return nothing: it is there."""

    model = SAC(Evaluating, "Pendulum-v1", policy_kwargs=default_kwargs())
    assert not extractors_of(model)[0].settings.with_observation


def test_another_preset_says_itself_what_the_policy_sees() -> None:
    for name in ("PPO", "SAC"):
        model = VECTOR_ALGORITHMS[name](default_kwargs(preset="cpc", isolated=True))
        settings = extractors_of(model)[0].settings
        assert settings.with_observation
        assert not settings.select_inputs
