"""Aligned features: updates of the encoder between those of RL change the policy little."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor, nn

from rl_infonce import InfoNCEExtractor
from rl_infonce.networks.alignment import procrustes
from rl_infonce.sb3.batch_encoding import Encoded
from rl_infonce.sb3.own_updates import ALIGN_FREQ, N_ALIGNED, OwnUpdates, _spread_observations
from rl_infonce.sb3.vector_encoder import VectorEncoder
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
        if len(stored) >= 64:
            self.observations, self.before = stored, self.features(stored)

    def _on_step(self) -> bool:
        return True


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "n_steps"), [("PPO", 1280), further("SAC", 240)])
def test_features_move_less_between_rollouts(name: str, n_steps: int) -> None:
    means = {}
    for aligns in (False, True):
        change = Change()
        build(name, align_features=aligns).learn(n_steps, callback=change)
        means[aligns] = sum(change.changes) / len(change.changes)
    assert means[True] < 0.7 * means[False]


class Linear(nn.Module):
    """An encoder whose features are sums of its inputs, which are shifted by a buffer."""

    features_dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
        self.register_buffer("mean", torch.zeros(5))

    def encode(self, inputs: Tensor, averages: dict[str, Tensor] | None = None) -> Encoded:
        tensors = {"weight": self.weight, "mean": self.get_buffer("mean"), **(averages or {})}
        return Encoded((inputs - tensors["mean"]) @ tensors["weight"], None)

    def output(self, inputs: Tensor, encoded: Encoded) -> Tensor:
        return encoded.features


class Turned:
    """An encoder that updates turn and shift, on observations that stay.

    Args:
        tau: Speed of the average that the policy reads.
        n_rows: Number of observations.
    """

    def __init__(self, tau: float | None = None, n_rows: int = 40) -> None:
        encoder: Any = Linear()
        self.encoder = encoder
        settings = InfoNCESettings(isolated=True, align_features=True, policy_encoder_tau=tau)
        self.own_updates = OwnUpdates(self.encoder, nn.Module(), settings)
        with torch.no_grad():
            encoder.weight.neg_()  # SB3 draws weights anew
        self.stored = torch.randn(n_rows, 1, 5, generator=torch.Generator().manual_seed(1)) + 3
        self.experience: Any = SimpleNamespace(
            n_steps=n_rows, n_envs=1, observations=lambda steps, envs: self.stored[steps, envs]
        )
        self.auxiliary: Any = SimpleNamespace(
            encoder=self.encoder, inputs=lambda rows, augment: rows
        )
        self.turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(2)))[
            0
        ]

    @property
    def rotation(self) -> Tensor:
        assert self.own_updates.alignment is not None
        return self.own_updates.alignment.get_buffer("rotation")

    def read(self) -> Tensor:
        return self.own_updates.read(self.encoder, self.stored.flatten(0, 1))

    @torch.no_grad()
    def update(self, n_updates: int) -> Tensor:
        self.own_updates.begin_alignment(self.encoder)
        self.encoder.weight.copy_(self.encoder.weight @ self.turn)
        self.encoder.get_buffer("mean").add_(0.5)
        if self.own_updates.average is not None:
            self.own_updates.average.update(dict(self.encoder.named_parameters()))
        self.own_updates.adam.get_buffer("n_steps").add_(n_updates)
        self.own_updates.align(self.auxiliary, self.experience)
        return self.read()


@pytest.mark.parametrize("tau", [None, 1.0])
def test_an_encoder_that_merely_turns_changes_nothing(tau: float | None) -> None:
    turned = Turned(tau)
    before = turned.read()
    torch.testing.assert_close(turned.update(ALIGN_FREQ), before, rtol=0, atol=0.03)
    assert not torch.allclose(turned.update(ALIGN_FREQ - 1), before, atol=0.1), "too early"
    for n_updates in (1, ALIGN_FREQ, 3 * ALIGN_FREQ):
        torch.testing.assert_close(turned.update(n_updates), before, rtol=0, atol=0.03)


def test_without_updates_nothing_is_aligned_again() -> None:
    turned = Turned()
    turned.update(ALIGN_FREQ)
    rotation = turned.rotation.clone()
    for _ in range(2):
        turned.update(0)
    assert torch.equal(turned.rotation, rotation)


@pytest.mark.parametrize("n_rows", [0, 3])
def test_few_observations_align_nothing_until_there_are_more(n_rows: int) -> None:
    turned = Turned()
    before, stored = turned.read(), turned.stored
    turned.experience.n_steps = n_rows
    turned.update(ALIGN_FREQ)
    assert torch.equal(turned.rotation, torch.eye(4))
    turned.experience.n_steps = len(stored)
    torch.testing.assert_close(turned.update(1), before, rtol=0, atol=0.03)


@pytest.mark.parametrize(("n_steps", "n_envs"), [(16, 4), (512, 1), (256, 8), (100, 7), (600, 3)])
def test_observations_are_spread_over_steps_and_environments(n_steps: int, n_envs: int) -> None:
    seen: list[tuple[int, int]] = []
    experience: Any = SimpleNamespace(
        n_steps=n_steps,
        n_envs=n_envs,
        observations=lambda steps, envs: seen.extend(zip(steps, envs, strict=True)),
    )
    _spread_observations(experience)
    assert len({*seen}) == len(seen) == min(n_steps * n_envs, N_ALIGNED)
    for env in range(n_envs):
        own = sorted(step for step, other in seen if other == env)
        gaps = np.diff([0, *own, n_steps - 1])
        assert max(gaps) <= -(-n_steps * n_envs // len(seen)) + 1


@pytest.mark.parametrize("name", ["PPO", further("SAC")])
def test_a_saved_model_reads_the_same_features(name: str, tmp_path: Path) -> None:
    model = build(name, align_features=True).learn(400 if name == "PPO" else 160)
    extractor = extractors_of(model)[0]
    assert not torch.equal(rotation_of(extractor), torch.eye(32))
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    vectors = torch.as_tensor(model.observation_space.sample())[None]
    assert torch.equal(extractors_of(loaded)[0](vectors), extractor(vectors))


def test_actor_and_critic_with_encoders_of_their_own_read_the_same() -> None:
    kwargs = policy_kwargs(with_observation=False, encoder_learning_rate=0.01)
    model = VECTOR_ALGORITHMS["PPO"](kwargs | {"share_features_extractor": False})
    change = Change()
    model.learn(4 * N_STEPS, callback=change)
    assert change.changes, "nothing was compared"
    first, second = extractors_of(model)
    assert not torch.equal(rotation_of(first), torch.eye(32))
    assert torch.equal(rotation_of(first), rotation_of(second))


def test_an_encoder_reads_with_all_of_its_former_tensors() -> None:
    space = spaces.Box(-1.0, 1.0, (3,))
    encoder = VectorEncoder(space, 4, precision="fp32", with_observation=False)
    vectors = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    former = {
        name: tensor.detach().clone()
        for name, tensor in [*encoder.named_parameters(), *encoder.named_buffers()]
    }
    before = encoder.encode(vectors).features
    encoder.update_statistics(3 * vectors + 1)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(2)
    assert not torch.allclose(encoder.encode(vectors).features, before, atol=0.1)
    torch.testing.assert_close(encoder.encode(vectors, former).features, before)


def test_what_leaves_inputs_out_is_turned_back_also() -> None:
    space = spaces.Box(-1.0, 1.0, (3,))
    encoder = VectorEncoder(space, 4, precision="fp32", with_observation=False)
    settings = InfoNCESettings(isolated=True, align_features=True, select_inputs=True)
    own_updates = OwnUpdates(encoder, nn.Module(), settings)
    own_updates.begin_alignment(encoder)
    assert own_updates.selection is not None
    assert own_updates.alignment is not None
    turned = Turned()
    turned.auxiliary.encoder, turned.stored = encoder, turned.stored[..., :3]
    vectors = turned.stored.flatten(0, 1)
    before = own_updates.read(encoder, vectors)
    own_updates.selection.selected[1] = False
    own_updates.adam.get_buffer("n_steps").add_(ALIGN_FREQ)
    own_updates.align(turned.auxiliary, turned.experience)
    without = vectors.clone()
    without[:, 1] = 0  # the mean that nothing has moved
    features = encoder.encode(without).features.detach()
    rotation, shift = procrustes(features, before, torch.eye(4))
    torch.testing.assert_close(own_updates.alignment.get_buffer("rotation"), rotation)
    torch.testing.assert_close(own_updates.read(encoder, vectors), features @ rotation + shift)
    assert not torch.allclose(rotation, torch.eye(4), atol=0.01)


@pytest.mark.parametrize("shares", [further(True), False])
def test_the_policy_reads_the_same_features_where_the_loss_ends(shares: bool) -> None:
    kwargs = policy_kwargs(with_observation=False) | {"share_features_extractor": shares}
    model = VECTOR_ALGORITHMS["PPO"](kwargs).learn(4 * N_STEPS)
    vectors = torch.as_tensor(model.observation_space.sample())[None]
    extractors = extractors_of(model)
    for extractor in extractors:
        extractor.make_updates_due()
    selection = getattr(extractors[0].own_updates, "selection", None)
    assert selection is not None
    selection.decided_at.fill_(1)  # so that a test would be due
    before = [extractor(vectors) for extractor in extractors]
    for extractor in extractors:
        extractor.infonce_coef = 0.0
    model.learn(2 * N_STEPS, reset_num_timesteps=False)
    for extractor, features in zip(extractors, before, strict=True):
        assert torch.equal(extractor(vectors), features)


@pytest.mark.parametrize(("name", "aligns"), [("PPO", True), ("SAC", False)])
def test_features_are_aligned_after_rollouts_alone(name: str, aligns: bool) -> None:
    model = build(name).learn(400 if name == "PPO" else 160)
    extractor = extractors_of(model)[0]
    assert torch.equal(rotation_of(extractor), torch.eye(32)) is not aligns
    vectors = torch.as_tensor(model.observation_space.sample())[None]
    assert extractor.own_updates is not None
    averaged = extractor.encoder.encode(vectors, extractor.own_updates.averages()).features
    assert torch.equal(extractor(vectors), averaged) is not aligns


def test_without_a_loss_nothing_is_aligned() -> None:
    kwargs = policy_kwargs(infonce_coef=0.0)
    model = VECTOR_ALGORITHMS["PPO"](kwargs).learn(4 * N_STEPS)
    assert torch.equal(rotation_of(extractors_of(model)[0]), torch.eye(32))
