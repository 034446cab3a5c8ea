"""A loss of the user's own through the same attachment."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn
from torch.nn import functional

from rl_infonce import InfoNCEExtractor
from rl_infonce.objective import ContrastBatch, ObjectiveShape, TemporalInfoNCE
from rl_infonce.settings import InfoNCESettings
from tests.further import further
from tests.resuming.killing import assert_goes_on_exactly
from tests.sb3.fakes import IMAGES, VECTORS
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    VECTOR_ALGORITHMS,
    assert_same_weights,
    extractors_of,
    policy_kwargs,
    record_logger,
    saved,
    streams,
    weights_of,
)


class InverseDynamics(nn.Module):
    """Tell the first action from the features before it and after the last one."""

    def __init__(self, features_dim: int, action_dim: int) -> None:
        super().__init__()
        self.head = nn.Linear(2 * features_dim, action_dim)

    def forward(self, features: Tensor, futures: Tensor, actions: Tensor) -> Tensor:
        told = self.head(torch.cat([features, futures[0]], dim=1))
        return functional.mse_loss(told, actions[:, 0])


class Recorded(InverseDynamics):
    """The same, which keeps the shapes that it has seen."""

    def forward(self, features: Tensor, futures: Tensor, actions: Tensor) -> Tensor:
        self.seen = tuple(features.shape), tuple(futures.shape), tuple(actions.shape)
        return super().forward(features, futures, actions)


@pytest.mark.parametrize("name", ["PPO", *map(further, ("SAC", "DQN", "MaskablePPO"))])
def test_a_loss_of_images_rides_on_the_backward_of_the_host(name: str) -> None:
    model = ALGORITHMS[name](policy_kwargs(objective=Recorded, horizons=(2,)))
    first = extractors_of(model)[0]
    before = weights_of(first)
    numbers = record_logger(model)
    model.learn(N_STEPS * 2)
    moved = weights_of(first)
    for part in ("cnn.0.weight", "infonce.custom.loss.head.weight"):
        assert not torch.equal(moved[part], before[part])
    size = 2 if name == "SAC" else 3
    assert first.infonce.custom.loss.seen == ((16, 32), (1, 16, 32), (16, 2, size))  # type: ignore[union-attr]
    assert any(tag.endswith("accuracy_k2") for tag in numbers)


@pytest.mark.parametrize("name", ["PPO", "SAC", further("TD3"), further("TRPO")])
def test_a_loss_of_vectors_has_updates_of_its_own(name: str) -> None:
    model = VECTOR_ALGORITHMS[name](policy_kwargs(objective=InverseDynamics))
    first = extractors_of(model)[0]
    before = weights_of(first)
    model.learn(N_STEPS * 2)
    assert first.is_isolated
    assert not first.settings.select_inputs
    for part in ("mlp.0.weight", "infonce.custom.loss.head.weight"):
        assert not torch.equal(weights_of(first)[part], before[part])


def test_the_loss_and_its_gradient_are_those_of_a_plain_call() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = ObjectiveShape(features_dim=6, local_dim=0, n_horizons=2, action_dim=3)
    settings = InfoNCESettings(objective=InverseDynamics, action_conditioning=True)
    objective = TemporalInfoNCE(settings, shape, generator=generator)
    features = torch.randn(5, 6, generator=generator, requires_grad=True)
    futures = torch.randn(2, 8, 6, generator=generator, requires_grad=True)  # 3 are no positives
    actions = torch.randn(5, 4, 3, generator=generator)
    mask = torch.ones(2, 5, 8, dtype=torch.bool)
    batch = ContrastBatch(features[:, None], mask[0, :, :1], futures, mask, actions=actions)
    found = objective(batch, (1, 4))
    assert objective.custom is not None
    custom = objective.custom.loss
    own = [features, futures, *custom.parameters()]
    expected = custom(features, futures[:, :5], actions)
    assert torch.equal(found.loss, expected)
    for ours, theirs in zip(
        torch.autograd.grad(found.loss, own), torch.autograd.grad(expected, own), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert found.accuracy.shape == (2,)


def test_weights_of_the_loss_come_from_the_seed_of_the_extractor() -> None:
    first, again, other = (_head_of_seed(seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def _head_of_seed(seed: int) -> Tensor:
    actions = spaces.Discrete(3)
    extractor = InfoNCEExtractor(IMAGES, objective=InverseDynamics, action_space=actions, seed=seed)
    weight: Tensor = extractor.state_dict()["infonce.custom.loss.head.weight"]
    return weight


def test_the_host_draws_what_it_draws_without_the_loss() -> None:
    torch.manual_seed(3)
    _head_of_seed(0)
    after = streams()
    torch.manual_seed(3)
    InfoNCEExtractor(IMAGES, seed=0)
    assert streams() == after


def test_coefficient_0_is_the_plain_network_beside_a_loss_of_ones_own() -> None:
    own: list[dict[str, Any]] = [{}, {"objective": InverseDynamics}]
    plain, model = (
        ALGORITHMS["PPO"](policy_kwargs(infonce_coef=0.0, **each)).learn(N_STEPS) for each in own
    )
    assert_same_weights(model.policy, plain.policy)


def test_what_is_none_is_not_given() -> None:
    given = {"objective": InverseDynamics, "action_space": spaces.Discrete(3)}
    assert InfoNCEExtractor(IMAGES, centred=None, **given).infonce.custom is not None  # type: ignore[arg-type]


def test_a_model_with_the_users_loss_is_saved_and_loaded(tmp_path: Path) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(objective=InverseDynamics))
    model.learn(N_STEPS)
    loaded = type(model).load(saved(tmp_path, model), env=model.get_env())
    assert_same_weights(loaded.policy, model.policy, with_own=True)
    loaded.learn(N_STEPS)


@pytest.mark.parametrize("build", [ALGORITHMS["PPO"], further(VECTOR_ALGORITHMS["SAC"])])
def test_a_killed_training_with_the_users_loss_goes_on_exactly(build: Any, tmp_path: Path) -> None:
    def make() -> BaseAlgorithm:
        model: BaseAlgorithm = build(policy_kwargs(objective=InverseDynamics))
        return model

    assert_goes_on_exactly(make, tmp_path, [100], 160)


@pytest.mark.parametrize("own", [{"pairs_from": "minibatch"}, {"positives": "shuffled"}])
def test_other_pairs_and_futures_train_the_loss_otherwise(own: dict[str, Any]) -> None:
    heads = []
    for settings in ({}, own):
        kwargs = policy_kwargs(objective=InverseDynamics, horizons=(1,), **settings)
        model = ALGORITHMS["PPO"](kwargs).learn(N_STEPS)
        heads.append(extractors_of(model)[0].state_dict()["infonce.custom.loss.head.weight"])
    assert not torch.equal(*heads)


class Slowness(nn.Module):
    """A loss without weights: the next features are to be these."""

    def __init__(self, *_: int) -> None:
        super().__init__()

    def forward(self, features: Tensor, futures: Tensor, actions: Tensor | None) -> Tensor:
        return (futures[0] - features).square().mean()


@pytest.mark.parametrize("build", [ALGORITHMS["PPO"], VECTOR_ALGORITHMS["SAC"]])
def test_a_loss_may_have_no_weights(build: Any) -> None:
    model = build(policy_kwargs(objective=Slowness, horizons=(1,)))
    model.learn(N_STEPS * 2)
    assert extractors_of(model)[0].last_infonce["loss"] >= 0


@pytest.mark.parametrize("build", [ALGORITHMS["PPO"], VECTOR_ALGORITHMS["PPO"]])
def test_the_loss_is_in_training_mode_when_it_trains(build: Any) -> None:
    modes = []

    class Watching(InverseDynamics):
        def forward(self, *given: Tensor) -> Tensor:
            modes.append(self.training)
            return super().forward(*given)

    model = build(policy_kwargs(objective=Watching))
    model.learn(N_STEPS * 2)
    assert set(modes) == {True}


def test_two_views_of_one_image_have_no_actions_between_them() -> None:
    class Views(Slowness):
        def forward(self, features: Tensor, futures: Tensor, actions: Tensor | None) -> Tensor:
            assert actions is None
            return super().forward(features, futures, actions)

    model = ALGORITHMS["PPO"](policy_kwargs(objective=Views, preset="curl"))
    model.learn(N_STEPS)
    assert extractors_of(model)[0].last_infonce["loss"] > 0


class PerPair(InverseDynamics):
    def forward(self, features: Tensor, futures: Tensor, actions: Tensor) -> Tensor:
        return features.sum(dim=1)


def test_a_loss_that_is_no_number_is_named() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(objective=PerPair))
    with pytest.raises(ValueError, match=r"got a tensor \(16,\) from PerPair. Take the mean"):
        model.learn(N_STEPS)


@pytest.mark.parametrize(
    ("space", "arguments", "error", "message"),
    [
        (IMAGES, {"objective": InverseDynamics(3, 3)}, TypeError, "got a InverseDynamics itself"),
        (IMAGES, {"objective": lambda features, actions: 3}, TypeError, "got int"),
        (IMAGES, {"objective": nn.Module}, TypeError, "features_dim=512 and action_dim=3, got <"),
        (IMAGES, {"objective": 3}, TypeError, "`objective` to be one of infonce, self_prediction"),
        (IMAGES, {"centred": False}, ValueError, "`centred` with objective=.infonce. alone"),
        (IMAGES, {"temperature": 0.2}, ValueError, "`temperature` with"),
        (IMAGES, {"critic": "mlp"}, ValueError, "`critic` with objective='infonce' alone"),
        (IMAGES, {"preset": "spatial_cpc"}, ValueError, "with the preset that has it"),
        (VECTORS, {"predictor": "gru"}, ValueError, "`predictor` with the objectives"),
        (VECTORS, {"select_inputs": True}, ValueError, "`select_inputs` with the objectives"),
    ],
)
def test_what_does_not_fit_is_refused(
    space: spaces.Box, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"objective": InverseDynamics, **arguments}
    with pytest.raises(error, match=message):
        InfoNCEExtractor(space, action_space=spaces.Discrete(3), **given)
