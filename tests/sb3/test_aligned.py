"""Aligned features: updates of the encoder between those of RL change the policy little."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor, nn

from rl_infonce import InfoNCEExtractor
from rl_infonce.sb3.batch_encoding import Encoded
from rl_infonce.sb3.own_updates import ALIGN_FREQ, OwnUpdates
from rl_infonce.settings import InfoNCESettings
from tests.further import further
from tests.sb3.worlds import N_STEPS, VECTOR_ALGORITHMS, extractors_of, policy_kwargs


def build(name: str, **settings: Any) -> BaseAlgorithm:
    kwargs = policy_kwargs(with_observation=False, n_pairs=64, **settings)
    if name == "PPO":
        return PPO("MlpPolicy", "CartPole-v1", n_steps=128, policy_kwargs=kwargs, seed=0)
    rounds: dict[str, Any] = {"learning_starts": 64, "train_freq": 16, "gradient_steps": 16}
    return SAC("MlpPolicy", "Pendulum-v1", policy_kwargs=kwargs, seed=0, **rounds)


def rotation_of(extractor: InfoNCEExtractor) -> Tensor:
    assert extractor.own_updates is not None
    assert extractor.own_updates.alignment is not None
    rotation: Tensor = extractor.own_updates.alignment.get_buffer("rotation")
    return rotation


class Change(BaseCallback):
    """Notes how far features move between RL's updates and the next rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.observations: Tensor | None = None
        self.changes: list[float] = []

    def features(self, observations: Tensor) -> Tensor:
        first, *others = extractors_of(self.model)
        features: Tensor = first(observations)
        for other in others:
            torch.testing.assert_close(other(observations), features)
        return features

    def _on_rollout_start(self) -> None:
        if self.observations is not None:
            change = self.features(self.observations) - self.before
            self.changes.append(float(change.norm() / self.before.std(dim=0).norm()))

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        on_policy = hasattr(model, "rollout_buffer")
        buffer = model.rollout_buffer if on_policy else model.replay_buffer
        stored = torch.as_tensor(buffer.observations[: buffer.size()]).flatten(0, 1).float()
        if len(stored) > 64:
            self.observations, self.before = stored, self.features(stored)

    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize(("name", "n_steps"), [("PPO", 1280), further("SAC", 240)])
def test_features_move_less_between_rollouts(name: str, n_steps: int) -> None:
    means = {}
    for aligns in (False, True):
        change = Change()
        build(name, align_features=aligns).learn(n_steps, callback=change)
        changes = change.changes[-4:]  # at first an encoder has more to learn than to turn
        means[aligns] = sum(changes) / len(changes)
    assert means[True] < 0.7 * means[False]


class Linear(nn.Module):
    """An encoder whose features are sums of its inputs."""

    features_dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))

    def encode(self, inputs: Tensor, averages: dict[str, Tensor] | None = None) -> Encoded:
        return Encoded(inputs @ (averages or {"weight": self.weight})["weight"], None)


@pytest.mark.parametrize("tau", [None, 1.0])
def test_an_encoder_that_merely_turns_changes_nothing(tau: float | None) -> None:
    encoder: Any = Linear()
    settings = InfoNCESettings(isolated=True, align_features=True, policy_encoder_tau=tau)
    own_updates = OwnUpdates(encoder, nn.Module(), settings)
    stored = torch.randn(20, 2, 5, generator=torch.Generator().manual_seed(1)) + 3
    experience: Any = SimpleNamespace(
        n_steps=20, n_envs=2, observations=lambda steps, envs: stored[steps, envs]
    )
    auxiliary: Any = SimpleNamespace(encoder=encoder, inputs=lambda rows, augment: rows)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(2)))[0]

    def update(n_updates: int) -> Tensor:
        with torch.no_grad():
            encoder.weight.copy_(encoder.weight @ turn)
        if own_updates.average is not None:
            own_updates.average.update(dict(encoder.named_parameters()))
        own_updates.adam.get_buffer("n_steps").add_(n_updates)
        own_updates.align(auxiliary, experience, n_updates)
        return own_updates.read(encoder, stored.flatten(0, 1)).features

    before = update(ALIGN_FREQ)
    assert not torch.allclose(update(ALIGN_FREQ - 1), before, atol=0.1), "too early"
    for n_updates in (1, ALIGN_FREQ, 3 * ALIGN_FREQ):
        torch.testing.assert_close(update(n_updates), before, rtol=0, atol=0.03)


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_a_saved_model_reads_the_same_features(name: str, tmp_path: Path) -> None:
    model = build(name).learn(400 if name == "PPO" else 160)
    extractor = extractors_of(model)[0]
    assert not torch.equal(rotation_of(extractor), torch.eye(32))
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    vectors = torch.as_tensor(model.observation_space.sample())[None]
    assert torch.equal(extractors_of(loaded)[0](vectors), extractor(vectors))


def test_actor_and_critic_with_encoders_of_their_own_read_the_same() -> None:
    kwargs = policy_kwargs(with_observation=False, encoder_learning_rate=0.01)
    model = VECTOR_ALGORITHMS["PPO"](kwargs | {"share_features_extractor": False})
    model.learn(4 * N_STEPS, callback=Change())  # which compares them
    first, second = extractors_of(model)
    assert not torch.equal(rotation_of(first), torch.eye(32))
    assert torch.equal(rotation_of(first), rotation_of(second))


def test_without_a_loss_nothing_is_aligned() -> None:
    kwargs = policy_kwargs(infonce_coef=0.0)
    model = VECTOR_ALGORITHMS["PPO"](kwargs).learn(4 * N_STEPS)
    assert torch.equal(rotation_of(extractors_of(model)[0]), torch.eye(32))
