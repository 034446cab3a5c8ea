"""An extractor finds its own algorithm, weakly, again after every kind of copy, and no other."""

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import cloudpickle
import numpy as np
import pytest
import torch
from sb3_contrib import ARS
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)
from torch import nn

from rl_infonce import InfoNCECallback, InfoNCEExtractor
from rl_infonce.sb3.batch_sampling import sample_batch
from rl_infonce.sb3.binding import judges_its_actor
from rl_infonce.sb3.callbacks import trained_extractors
from rl_infonce.sb3.update_counts import DETAILS_FREQ
from tests.further import further
from tests.sb3.fakes import IMAGE_SHAPE, IMAGES, StampedEnv, decode, stamped_vec_env
from tests.sb3.test_gradients import n_hooks
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    assert_all_moved,
    assert_same_weights,
    extractors_of,
    noise_images,
    policy_kwargs,
    streams,
    weights_of,
)


def bound(extractor: InfoNCEExtractor) -> Any:
    return extractor._session.algorithm


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_constructing_algorithm_is_found(name: str) -> None:
    model = ALGORITHMS[name]()
    assert all(bound(extractor) is model for extractor in extractors_of(model))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", "DQN", further("SAC"), further("RecurrentPPO")])
def test_save_load_learn_rebinds_and_keeps_heads(name: str, tmp_path: Path) -> None:
    model = ALGORITHMS[name](policy_kwargs(preset="atc")).learn(N_STEPS)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=model.get_env())
    entries = " ".join(weights_of(model.policy))
    assert "infonce." in entries
    assert "target.average" in entries
    assert_same_weights(model.policy, loaded.policy, with_own=True)
    loaded.learn(N_STEPS, reset_num_timesteps=False)
    assert all(bound(extractor) is loaded for extractor in extractors_of(loaded))
    assert all(extractor.last_infonce["loss"] > 0 for extractor in extractors_of(loaded))


def saved_and_loaded(policy: Any, folder: Path) -> Any:
    policy.save(str(folder / "policy"))
    return type(policy).load(str(folder / "policy"))


COPIES: dict[str, Callable[[Any, Path], Any]] = {
    "loaded": saved_and_loaded,
    "deep copy": lambda policy, _: copy.deepcopy(policy),
    "cloudpickled": lambda policy, _: cloudpickle.loads(cloudpickle.dumps(policy)),
}


@pytest.mark.parametrize("name", ["PPO", "DQN"])
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_the_policy_alone_predicts_the_same_and_is_unbound(
    copied: Callable[[Any, Path], Any], name: str, tmp_path: Path
) -> None:
    model = ALGORITHMS[name]()
    if name == "DQN":  # once trained, SB3's PPO keeps tensors that no deep copy takes
        model.learn(N_STEPS)
    policy = copied(model.policy, tmp_path)
    observation = model.observation_space.sample()
    expected = model.predict(observation, deterministic=True)[0]
    assert policy.predict(observation, deterministic=True)[0] == expected
    images = torch.rand(2, *IMAGE_SHAPE)
    for own, other in zip(extractors_of(model), trained_extractors(policy), strict=True):
        assert bound(other) is None
        with torch.no_grad():
            assert torch.equal(own(images), other(images))


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_a_copy_made_before_training_is_renewed(name: str) -> None:
    model = ALGORITHMS[name]()
    copied = copy.deepcopy(model.policy)
    model.learn(N_STEPS)
    copied.load_state_dict(model.policy.state_dict())
    assert_same_weights(copied, model.policy)
    observation = model.observation_space.sample()
    expected = model.predict(observation, deterministic=True)[0]
    assert np.array_equal(copied.predict(observation, deterministic=True)[0], expected)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_an_extractor_shares_no_session(copied: Callable[[Any], Any]) -> None:
    model = ALGORITHMS["PPO"]()
    (own,) = extractors_of(model)
    other = copied(own)
    assert bound(own) is model
    assert bound(other) is None
    assert other._session.rng is not own._session.rng
    assert other._session.attachment is not own._session.attachment


def test_an_unbound_extractor_trains_as_a_plain_network_and_says_so_once() -> None:
    space = stamped_vec_env(1).observation_space
    extractor = InfoNCEExtractor(space, features_dim=16)
    images = torch.rand(4, *(space.shape or ()))
    with pytest.warns(UserWarning, match=r"extractor\.bind\(model\)") as caught:
        losses = [extractor(images).sum() for _ in range(3)]
    assert len(caught) == 1
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    assert extractor.cnn[0].weight.grad is not None


def test_explicit_binding_replaces_the_search() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(auto_bind=False))
    (extractor,) = extractors_of(model)
    assert bound(extractor) is None
    extractor.bind(model)
    model.learn(N_STEPS)
    assert extractor.last_infonce["loss"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", "DQN"])
@pytest.mark.parametrize("preset", ["cpc", "atc"])
def test_a_model_that_the_callback_binds_trains_as_one_that_was_found(
    name: str, preset: str
) -> None:
    found = ALGORITHMS[name](policy_kwargs(preset=preset)).learn(N_STEPS)
    model = ALGORITHMS[name](policy_kwargs(preset=preset, auto_bind=False))
    model.learn(N_STEPS, callback=InfoNCECallback())
    assert extractors_of(model)[0].last_infonce["loss"] > 0
    assert_same_weights(extractors_of(found)[0], extractors_of(model)[0], with_own=True)


def test_binding_draws_nothing_from_the_hosts_streams() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(auto_bind=False))
    before = streams()
    extractors_of(model)[0].bind(model)
    assert streams() == before


def test_binding_keeps_the_extractors_own_seed() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(auto_bind=False, seed=5))
    (extractor,) = extractors_of(model)
    heads, stream = weights_of(extractor), extractor._session.rng.bit_generator.state
    extractor.bind(model)
    assert extractor._session.rng.bit_generator.state == stream
    assert all(torch.equal(heads[entry], now) for entry, now in weights_of(extractor).items())


def test_binding_keeps_heads_that_were_loaded(tmp_path: Path) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(auto_bind=False))
    model.learn(N_STEPS, callback=InfoNCECallback())
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=model.get_env())
    extractors_of(loaded)[0].bind(loaded)
    assert_same_weights(model.policy, loaded.policy, with_own=True)


def has_gradient(extractor: InfoNCEExtractor) -> bool:
    gradients = [parameter.grad for parameter in extractor.cnn.parameters()]
    return any(bool(gradient.any()) for gradient in gradients if gradient is not None)


def look(model: BaseAlgorithm) -> None:
    images = torch.rand(4, *(model.observation_space.shape or ()), generator=torch.Generator())
    for extractor in extractors_of(model):
        features = extractor(images)
        assert torch.equal(features, extractor(images)), "not even moved"
        extractor.zero_grad(set_to_none=False)
        (0 * features).sum().backward()
        assert not has_gradient(extractor)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", further("DQN"), further("SAC")])
def test_a_look_at_the_policy_after_training_changes_nothing(name: str) -> None:
    models = []
    for looks in (True, False):  # one after the other, as they share SB3's random streams
        model = ALGORITHMS[name](policy_kwargs(augment_observations=True)).learn(N_STEPS)
        assert model.policy.training, "as SB3 leaves it"
        if looks:
            look(model)
        models.append(model.learn(N_STEPS, reset_num_timesteps=False))
    assert_same_weights(*(model.policy for model in models), with_own=True)


class LookAtUpdates(BaseCallback):
    """Asks the policy for gradients wherever SB3 leaves it in training mode."""

    n_looks = 0

    def _on_training_end(self) -> None:
        if self.model.policy.training:
            self.n_looks += 1
            look(self.model)

    _on_training_start = _on_training_end

    def _on_step(self) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", further("DQN")])
def test_a_callbacks_look_at_the_policy_changes_nothing(name: str) -> None:
    models = []
    for looking in (LookAtUpdates(), None):
        model = ALGORITHMS[name]()
        for _ in range(2):
            model.learn(N_STEPS, callback=looking, reset_num_timesteps=False)
        assert looking is None or looking.n_looks == 4
        models.append(model)
    assert_same_weights(*(model.policy for model in models), with_own=True)


def test_an_update_under_another_name_carries_the_loss() -> None:
    class Renamed(PPO):
        def train(self) -> None:
            raise NotImplementedError

        def update(self) -> None:
            images = torch.rand(4, *(self.observation_space.shape or ()))
            (extractor,) = extractors_of(self)
            (0 * extractor(images)).sum().backward()

        def learn(self, *given: Any, **settings: Any) -> Any:
            self.policy.set_training_mode(True)
            self.update()
            return self

    model = ALGORITHMS["PPO"]().learn(N_STEPS)
    model.policy.zero_grad()
    model.__class__ = Renamed
    model.learn(1)
    assert all(has_gradient(extractor) for extractor in extractors_of(model))


def test_without_auto_bind_the_loss_stays_off() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(auto_bind=False))
    with pytest.warns(UserWarning, match="does not know which algorithm owns it"):
        model.learn(N_STEPS)
    assert not extractors_of(model)[0].last_infonce


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_deep_copy_of_the_model_binds_to_the_copy(name: str) -> None:
    model = ALGORITHMS[name]()
    copied = copy.deepcopy(model)
    copied.learn(N_STEPS)
    assert all(bound(extractor) is copied for extractor in extractors_of(copied))
    assert extractors_of(copied)[0].last_infonce["loss"] > 0
    assert all(bound(extractor) is model for extractor in extractors_of(model))
    assert not extractors_of(model)[0].last_infonce


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", further("DQN")])
def test_two_copies_of_a_model_train_alike(name: str) -> None:
    model = ALGORITHMS[name]()
    copies = [copy.deepcopy(model), copy.deepcopy(model)]
    for each in copies:
        set_random_seed(1)
        each.learn(N_STEPS)
    assert_same_weights(*(each.policy for each in copies), with_own=True)


def test_an_unpickled_policy_goes_on_with_the_stream_of_the_pairs() -> None:
    model = ALGORITHMS["PPO"]().learn(64)
    policy: Any = cloudpickle.loads(cloudpickle.dumps(model.policy))
    own, other = extractors_of(model)[0]._session.rng, policy.features_extractor._session.rng
    assert own.bit_generator.state == other.bit_generator.state
    other.random()
    assert own.bit_generator.state != other.bit_generator.state


def test_a_pickle_in_the_middle_of_an_update_carries_no_hook() -> None:
    model = ALGORITHMS["PPO"]()
    (extractor,) = extractors_of(model)
    model.learn(64)
    extractor._session.counts.n_updates = DETAILS_FREQ  # so that the next forward is watched
    extractor.auto_bind = False  # so that it carries the loss wherever it is called
    extractor(torch.rand(2, *(model.observation_space.shape or ())))
    assert n_hooks(extractor) > 0
    policy: Any = cloudpickle.loads(cloudpickle.dumps(model.policy))
    assert n_hooks(policy) == 0
    assert policy.state_dict().keys() == model.policy.state_dict().keys()


def test_a_policy_moved_into_another_model_follows_that_model() -> None:
    first, second = ALGORITHMS["PPO"](), ALGORITHMS["PPO"]()
    first.policy, second.policy = second.policy, first.policy
    first.learn(N_STEPS)
    second.learn(N_STEPS)
    assert bound(extractors_of(first)[0]) is first
    assert bound(extractors_of(second)[0]) is second


@pytest.mark.thorough
def test_several_models_read_their_own_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [ALGORITHMS["PPO"](), ALGORITHMS["DQN"](), ALGORITHMS["PPO"]()]
    read: list[tuple[int, int]] = []
    original = InfoNCEExtractor.experience

    def recording(self: InfoNCEExtractor) -> Any:
        read.append((id(self), id(bound(self))))
        return original(self)

    monkeypatch.setattr(InfoNCEExtractor, "experience", recording)
    for model in [*models, models[0]]:
        model.learn(N_STEPS, reset_num_timesteps=False)
    owners = {id(extractors_of(model)[0]): id(model) for model in models}
    assert dict(read) == owners
    assert all(owners[extractor] == model for extractor, model in read)


def test_the_algorithm_is_held_weakly() -> None:
    model = ALGORITHMS["PPO"]()
    policy = model.policy
    model.learn(N_STEPS)
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None
    assert bound(policy.features_extractor) is None  # type: ignore[arg-type]


@pytest.mark.thorough
def test_the_callback_binds_a_compiled_policy() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(auto_bind=False))
    model.policy = torch.compile(model.policy, backend="eager")  # type: ignore[assignment]
    model.learn(N_STEPS, callback=InfoNCECallback())
    assert extractors_of(model)[0].last_infonce["loss"] > 0


def test_a_compiled_policy_trains_the_loss_and_survives_save_and_load(tmp_path: Path) -> None:
    model = ALGORITHMS["PPO"]()
    (extractor,) = extractors_of(model)
    before = weights_of(extractor)
    model.policy = torch.compile(model.policy, backend="eager")  # type: ignore[assignment]
    model.learn(N_STEPS)
    assert extractor.last_infonce["loss"] > 0
    assert_all_moved(extractor, before)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=model.get_env())
    assert_same_weights(extractors_of(model)[0], extractors_of(loaded)[0], with_own=True)
    loaded.learn(N_STEPS)
    assert extractors_of(loaded)[0].last_infonce["loss"] > 0


def test_training_after_set_env_never_pairs_across_the_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[tuple[Any, Any]] = []

    def recording(*arguments: Any) -> Any:
        raw = sample_batch(*arguments)
        if raw is not None:
            drawn.append((decode(raw.context[:, -1]), decode(raw.futures[0])))
        return raw

    monkeypatch.setattr("rl_infonce.sb3.updates.sample_batch", recording)
    model = ALGORITHMS["DQN"]().learn(N_STEPS - 2)
    other = StampedEnv(1, lengths=(9, 15))
    model.set_env(DummyVecEnv([lambda: other]))
    model.learn(N_STEPS, reset_num_timesteps=False)
    assert {env for anchors, _ in drawn for env in anchors.env.tolist()} == {0, 1}
    for anchors, futures in drawn:
        np.testing.assert_array_equal(anchors.env, futures.env)
        np.testing.assert_array_equal(anchors.episode, futures.episode)
        np.testing.assert_array_equal(anchors.time + 4, futures.time)


def test_stacked_transposed_and_normalised_environments_work() -> None:
    env = VecNormalize(
        VecTransposeImage(
            VecFrameStack(stamped_vec_env(2, lengths=(9, 15)), 2, channels_order="first"), skip=True
        ),
        norm_obs=False,
    )
    model = PPO(
        "CnnPolicy", env, n_steps=32, batch_size=32, policy_kwargs=policy_kwargs(horizons=(8,))
    )
    model.learn(64)
    assert extractors_of(model)[0].last_infonce["loss"] > 0


def brightest_in_loss(model: BaseAlgorithm) -> float:
    """Return the largest number that the encoder sees in an auxiliary loss."""
    (extractor,) = extractors_of(model)
    seen: list[torch.Tensor] = []
    first: nn.Module = extractor.cnn[0]
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    experience = extractor.experience()
    assert experience is not None
    assert extractor.infonce_loss(experience) is not None
    return float(seen[0].max())


def test_images_normalised_by_vec_normalize_are_not_divided_again() -> None:
    env = VecNormalize(stamped_vec_env(1, lengths=(9, 15)), norm_reward=False)
    kwargs = policy_kwargs() | {"normalize_images": False}
    model = DQN("CnnPolicy", env, buffer_size=200, learning_starts=40, policy_kwargs=kwargs, seed=0)
    model.learn(60)
    assert brightest_in_loss(model) > 2.0


@pytest.mark.parametrize(("normalize_images", "brightest"), [(True, 1.0), (False, 255.0)])
def test_the_loss_divides_images_exactly_as_the_host_does(
    normalize_images: bool, brightest: float
) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs() | {"normalize_images": normalize_images})
    model.learn(N_STEPS)
    assert brightest_in_loss(model) == brightest


def test_an_exploration_phase_without_training_computes_nothing() -> None:
    model = ALGORITHMS["DQN"](learning_starts=10_000).learn(N_STEPS)
    assert not extractors_of(model)[0].last_infonce


def test_what_is_no_algorithm_is_not_bound() -> None:
    extractor = extractors_of(ALGORITHMS["PPO"]())[0]
    with pytest.raises(TypeError, match="`model` to be an SB3 algorithm, got 'ppo'"):
        extractor.bind("ppo")  # type: ignore[arg-type]


@pytest.mark.parametrize("coef", [0.0, 0.1])
def test_an_algorithm_without_a_gradient_is_refused(coef: float) -> None:
    env = stamped_vec_env(1)
    extractor = InfoNCEExtractor(env.observation_space, features_dim=16, infonce_coef=coef)
    with pytest.raises(ValueError, match=r"to follow a gradient, got ARS.*Take another algorithm"):
        extractor.bind(ARS("LinearPolicy", env))


def test_an_algorithm_that_judges_its_actor_is_known_by_its_classes() -> None:
    class Timed(SAC):
        def train(self, *given: Any, **named: Any) -> None:
            super().train(*given, **named)

    assert judges_its_actor(Timed("MlpPolicy", "Pendulum-v1", buffer_size=10))
    assert not judges_its_actor(PPO("MlpPolicy", "CartPole-v1"))


def test_a_part_that_is_replaced_is_read() -> None:
    extractor = InfoNCEExtractor(IMAGES).eval()
    images = noise_images(2).float() / 255
    before = extractor(images)
    (layer, *_) = extractor.linear
    extractor.linear = nn.Sequential(nn.Linear(cast(nn.Linear, layer).in_features, 512))
    assert not torch.equal(extractor(images), before)
