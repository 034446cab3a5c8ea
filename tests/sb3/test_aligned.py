"""Aligned features: updates of the encoder between rollouts change the policy as little as can."""

from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce import InfoNCEExtractor
from rl_infonce.sb3.batch_encoding import Encoded
from tests.sb3.worlds import N_STEPS, VECTOR_ALGORITHMS, extractors_of, policy_kwargs

ON_POLICY = ("PPO", "A2C", "MaskablePPO", "RecurrentPPO", "TRPO")


def build(name: str, **settings: Any) -> BaseAlgorithm:
    kwargs = policy_kwargs(with_observation=False, encoder_learning_rate=0.01, **settings)
    return VECTOR_ALGORITHMS[name](kwargs)


def rotation_of(extractor: InfoNCEExtractor) -> torch.Tensor:
    assert extractor.own_updates is not None
    assert extractor.own_updates.alignment is not None
    rotation: torch.Tensor = extractor.own_updates.alignment.get_buffer("rotation")
    return rotation


class Change(BaseCallback):
    """Notes how far features of the last rollout move between RL's update and the next rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.observations: torch.Tensor | None = None
        self.changes: list[float] = []

    def features(self, observations: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = extractors_of(self.model)[0](observations)
        return features

    def _on_rollout_start(self) -> None:
        if self.observations is not None:
            change = self.features(self.observations) - self.before
            self.changes.append(float(change.norm() / self.before.std(dim=0).norm()))

    def _on_rollout_end(self) -> None:
        buffer: Any = self.model.rollout_buffer  # type: ignore[attr-defined]
        self.observations = torch.as_tensor(buffer.observations).flatten(0, 1).float()
        self.before = self.features(self.observations)

    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize("name", ON_POLICY)
def test_features_move_less_between_rollouts(name: str) -> None:
    means = {}
    for aligns in (False, True):
        change = Change()
        build(name, align_features=aligns).learn(4 * N_STEPS, callback=change)
        assert len(change.changes) > 1
        means[aligns] = sum(change.changes) / len(change.changes)
    assert means[True] < 0.7 * means[False]


@pytest.mark.parametrize("share", [True, False])
def test_an_encoder_that_merely_turns_changes_little(
    share: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where actor and critic have extractors of their own."""
    drawn = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    turn = torch.matrix_exp(0.1 * (drawn - drawn.T))

    def update(self: InfoNCEExtractor, *_: Any) -> None:
        """Turn what comes out of the encoder, in place of an update."""
        encode = self.encoder.encode

        def turned(*given: Any) -> Encoded:
            return Encoded(encode(*given).features @ turn + 0.5, None)

        monkeypatch.setattr(self.encoder, "encode", turned)

    monkeypatch.setattr(InfoNCEExtractor, "_update", update)
    kwargs = policy_kwargs(with_observation=False, encoder_updates=1)
    model = VECTOR_ALGORITHMS["PPO"](kwargs | {"share_features_extractor": share})
    leader, *others = extractors_of(model)
    assert len(others) == (not share)
    change = Change()
    model.learn(4 * 64, callback=change)
    assert 0 < max(change.changes) < 0.1
    assert not torch.allclose(rotation_of(leader), torch.eye(32), atol=0.1)
    for other in others:
        assert torch.equal(rotation_of(other), rotation_of(leader))


def test_off_policy_algorithms_turn_nothing() -> None:
    model = build("SAC").learn(2 * N_STEPS)
    assert torch.equal(rotation_of(extractors_of(model)[0]), torch.eye(32))


def test_a_saved_model_reads_the_same_features(tmp_path: Path) -> None:
    model = build("PPO").learn(4 * 64)
    extractor = extractors_of(model)[0]
    assert not torch.equal(rotation_of(extractor), torch.eye(32))
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    vectors = torch.randn(7, 5)
    assert torch.equal(extractors_of(loaded)[0](vectors), extractor(vectors))


def test_without_a_loss_nothing_is_aligned() -> None:
    kwargs = policy_kwargs(infonce_coef=0.0)
    model = VECTOR_ALGORITHMS["PPO"](kwargs).learn(4 * 64)
    assert torch.equal(rotation_of(extractors_of(model)[0]), torch.eye(32))
