"""An isolated encoder: RL's gradient stays out, and it moves between RL's updates alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.sac.policies import SACPolicy
from torch.func import functional_call

from rl_infonce import InfoNCECallback, InfoNCEExtractor
from rl_infonce.sb3 import make_updates_due, vector_encoder
from rl_infonce.sb3.own_adam import OwnAdam
from tests.further import further
from tests.sb3.fakes import StampedVectorEnv, stamped_vec_env
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    VECTOR_ALGORITHMS,
    assert_all_moved,
    assert_same_weights,
    extractors_of,
    n_updates,
    policy_kwargs,
    record_logger,
    weights_of,
)

Vector = npt.NDArray[np.float32]
OWN_NETWORKS = ("PPO", "A2C", "MaskablePPO", "RecurrentPPO", "TRPO")
"""Algorithms whose value network can have an extractor of its own."""


def build(name: str, *, share: bool | None = None, **settings: Any) -> BaseAlgorithm:
    kwargs = policy_kwargs(isolated=True, **settings)
    return VECTOR_ALGORITHMS[name](
        kwargs if share is None else kwargs | {"share_features_extractor": share}
    )


WORLDS = [
    *(pytest.param(name, None, id=name) for name in VECTOR_ALGORITHMS),
    *(pytest.param(name, False, id=f"{name}-apart") for name in OWN_NETWORKS),
    *(pytest.param(name, True, id=f"{name}-shared") for name in ("SAC", "TD3")),
    *(
        pytest.param(name, True, id=f"{name}-shared", marks=pytest.mark.thorough)
        for name in ("TQC", "CrossQ")
    ),
]


def every_extractor(model: BaseAlgorithm) -> list[InfoNCEExtractor]:
    """Return all extractors, with those of target networks."""
    return [each for each in model.policy.modules() if isinstance(each, InfoNCEExtractor)]


def encoder_of(
    extractor: InfoNCEExtractor, parts: tuple[str, ...] = ("mlp.", "normalizer.")
) -> dict[str, torch.Tensor]:
    """Return a copy of the numbers of an encoder, without its heads."""
    return {
        name: tensor for name, tensor in weights_of(extractor).items() if name.startswith(parts)
    }


def are_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def optimizers(model: BaseAlgorithm) -> Iterator[torch.optim.Optimizer]:
    policy: Any = model.policy
    for owner in (policy, getattr(policy, "actor", None), getattr(policy, "critic", None)):
        optimizer = getattr(owner, "optimizer", None)
        if isinstance(optimizer, torch.optim.Optimizer):
            yield optimizer


def read_by_policy(
    extractor: InfoNCEExtractor, encoder: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the tensors of an encoder, averaged ones in place of those that are trained."""
    assert extractor.own_updates is not None
    averages = extractor.own_updates.averages() or {}
    return {name: averages.get(name, tensor) for name, tensor in encoder.items()}


class EncoderWatch(BaseCallback):
    """Fails if an encoder moves in a rollout or has a gradient; counts where it moved between."""

    def __init__(self, parts: tuple[str, ...] = ("mlp.", "normalizer.")) -> None:
        super().__init__()
        self.parts = parts
        self.at_start: list[dict[str, torch.Tensor]] = []
        self.n_optimizer_steps = self.n_moves = 0

    def _on_rollout_start(self) -> None:
        every = every_extractor(self.model)
        now = encoder_of(every[0], self.parts)
        if self.at_start and not are_same(self.at_start[-1], now):
            self.n_moves += 1
            read = read_by_policy(every[0], now)
            for each in every[1:]:
                assert are_same(read_by_policy(each, encoder_of(each, self.parts)), read)
        self.at_start.append(now)

    def _on_step(self) -> bool:
        self.check_unmoved()
        return True

    def _on_rollout_end(self) -> None:
        self.check_unmoved()

    def check_unmoved(self, *_: Any) -> None:
        now = encoder_of(every_extractor(self.model)[0], self.parts)
        assert are_same(now, self.at_start[-1])
        for extractor in every_extractor(self.model):
            assert all(parameter.grad is None for parameter in extractor.parameters())

    def before_step(self, *_: Any) -> None:
        self.n_optimizer_steps += 1
        self.check_unmoved()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), WORLDS)
def test_the_encoder_moves_between_updates_alone_and_all_networks_have_it(
    name: str, share: bool | None
) -> None:
    model = build(name, share=share)
    leader = extractors_of(model)[0]
    before = weights_of(leader)
    watch = EncoderWatch()
    for optimizer in optimizers(model):
        optimizer.register_step_pre_hook(watch.before_step)
    model.learn(2 * N_STEPS, callback=watch)
    watch.check_unmoved()  # after the last updates of RL also
    assert watch.n_optimizer_steps > 2
    assert watch.n_moves >= 2
    assert_all_moved(leader, before)
    if share is False:
        assert len(extractors_of(model)) == 2


@pytest.mark.parametrize("name", ["PPO", "SAC"])
@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_the_policy_reads_the_average_over_updates(
    name: str, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[dict[str, torch.Tensor]] = []
    step = OwnAdam.step

    def recording(self: OwnAdam, *given: Any) -> None:
        step(self, *given)
        trained.append({n: p.detach().clone() for n, p in leader.encoder.named_parameters()})

    monkeypatch.setattr(OwnAdam, "step", recording)
    settings: dict[str, Any] = {"encoder_learning_rate": 0.01, "input_sparsity": 0.0}
    settings["align_features"] = False
    model = build(name, policy_encoder_tau=tau, **settings)
    leader = every_extractor(model)[0]
    model.learn(N_STEPS)
    average = trained[0]
    for each in trained[1:]:
        average = {n: (1 - tau) * average[n] + tau * each[n] for n in average}
    assert len(trained) > 3
    vectors = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    expected = functional_call(
        leader.get_submodule("mlp"), _unprefixed(average), _normal(leader, vectors)
    )
    for extractor in every_extractor(model):
        torch.testing.assert_close(extractor(vectors)[:, 5:], expected, rtol=1e-4, atol=1e-5)
    own = leader.get_submodule("mlp")(_normal(leader, vectors))
    assert torch.allclose(own, expected, atol=1e-5) == (tau == 1.0)


def _unprefixed(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("mlp."): tensor for name, tensor in parameters.items()}


def _normal(extractor: InfoNCEExtractor, vectors: torch.Tensor) -> torch.Tensor:
    normal: torch.Tensor = extractor.get_submodule("normalizer")(vectors)
    return normal


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", further("DQN")])
def test_an_encoder_of_images_can_be_isolated(name: str) -> None:
    model = ALGORITHMS[name](policy_kwargs(isolated=True))
    watch = EncoderWatch(("cnn.", "linear."))
    before = weights_of(extractors_of(model)[0])
    for optimizer in optimizers(model):
        optimizer.register_step_pre_hook(watch.before_step)
    model.learn(2 * N_STEPS, callback=watch)
    assert watch.n_moves >= 2
    assert_all_moved(extractors_of(model)[0], before)


N_UPDATES: list[Any] = [
    # Three rollouts of 32 steps in 2 environments; the last one is taken when the next begins.
    ("PPO", {}, {}, 2 * (6 * 64 // 16)),
    ("PPO", {}, {"encoder_updates": 3}, 2 * 3),
    ("PPO", {}, {"n_pairs": 48}, 2 * 8),
    ("A2C", {"n_steps": 5}, {"encoder_updates": 1}, 19),
    # 192 steps, of which 60 come before the first update.
    further("SAC", {"train_freq": 1}, {}, 192 - 60 - 1),
    further("SAC", {"train_freq": 1, "gradient_steps": 2}, {}, 2 * (192 - 60 - 1)),
    further("SAC", {"gradient_steps": -1}, {}, 192 - 60 - 4),
    ("DQN", {}, {}, (192 - 60) // 4 - 1),
    ("DQN", {}, {"encoder_updates": 2}, 2 * ((192 - 60) // 4 - 1)),
]


@pytest.mark.parametrize(("name", "changes", "settings", "n_expected"), N_UPDATES)
def test_as_many_updates_are_made_as_the_settings_say(
    name: str,
    changes: dict[str, Any],
    settings: dict[str, Any],
    n_expected: int,
    computed: list[str],
) -> None:
    kwargs = policy_kwargs(isolated=True, **settings)
    model = VECTOR_ALGORITHMS[name](kwargs, **changes)
    model.learn(192)
    assert len(computed) == n_expected
    before = len(computed)
    model.learn(1, reset_num_timesteps=False)
    assert len(computed) > before, "what the last rollout taught was forgotten"


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the learning rates of the encoder's updates, as they are made."""
    found: list[float] = []
    step = OwnAdam.step

    def recording(self: OwnAdam, parameters: Any, gradients: Any, rate: float) -> None:
        found.append(rate)
        step(self, parameters, gradients, rate)

    monkeypatch.setattr(OwnAdam, "step", recording)
    return found


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [("PPO", None, 1e-3), ("SAC", None, 3e-4), ("DQN", None, 3e-4), ("SAC", 0.02, 0.02)],
)
def test_a_replay_buffer_has_a_slower_encoder(
    name: str, given: float | None, expected: float, rates: list[float]
) -> None:
    build(name, encoder_learning_rate=given).learn(N_STEPS)
    assert set(rates) == {expected}


@pytest.mark.parametrize("own", [0.0, 0.01])
def test_a_warm_up_begins_low_whatever_the_own_weight(own: float, rates: list[float]) -> None:
    warm_up = InfoNCECallback(lambda remaining: 0.01 * (1.0 - remaining))
    build("PPO", infonce_coef=own).learn(N_STEPS, callback=warm_up)
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_trpo_takes_a_weight_from_the_callback_for_an_isolated_encoder() -> None:
    model = build("TRPO", infonce_coef=0.0).learn(N_STEPS, callback=InfoNCECallback(0.01))
    assert n_updates(model) > 0


def test_a_rollout_teaches_at_least_once() -> None:
    kwargs = policy_kwargs(isolated=True, n_pairs=64)
    model = VECTOR_ALGORITHMS["A2C"](kwargs, n_steps=5).learn(30)
    assert n_updates(model) == 2


class Look(BaseCallback):
    """Predicts and evaluates wherever a callback may."""

    def __init__(self, others: DummyVecEnv) -> None:
        super().__init__()
        self.others = others

    def look(self) -> None:
        state = torch.get_rng_state()
        evaluate_policy(self.model, self.others, n_eval_episodes=1, warn=False)
        torch.set_rng_state(state)

    def _on_training_start(self) -> None:
        self.look()

    def _on_rollout_start(self) -> None:
        self.look()

    def _on_step(self) -> bool:
        if self.n_calls % 16 == 0:
            self.look()
        return True

    def _on_rollout_end(self) -> None:
        self.look()

    def _on_training_end(self) -> None:
        self.look()


def assert_trained_alike(first: BaseAlgorithm, second: BaseAlgorithm) -> None:
    """Fail unless all that is trained is equal: the heads of target networks are not."""
    assert_same_weights(first.policy, second.policy)
    for own, other in zip(extractors_of(first), extractors_of(second), strict=True):
        assert_same_weights(own, other, with_own=True)


def monitored(*, continuous: bool) -> DummyVecEnv:
    return DummyVecEnv([lambda: Monitor(StampedVectorEnv(7, continuous=continuous))])


@pytest.mark.slow
@pytest.mark.parametrize("auto_bind", [True, False])
@pytest.mark.parametrize("name", ["PPO", "SAC", further("DQN"), further("TRPO")])
def test_looks_at_the_policy_make_no_update(
    name: str, auto_bind: bool, computed: list[str]
) -> None:
    def train(*callbacks: BaseCallback) -> tuple[BaseAlgorithm, int]:
        computed.clear()
        model = build(name, auto_bind=auto_bind, preset="cpc")
        model.learn(N_STEPS, callback=[InfoNCECallback(), *callbacks])
        return model, len(computed)

    plain, n_computed = train()
    others = monitored(continuous=name == "SAC")
    looked, n_looked = train(Look(others))
    evaluated, n_evaluated = train(
        EvalCallback(others, eval_freq=16, n_eval_episodes=2, verbose=0, warn=False)
    )
    assert n_computed == n_looked == n_evaluated > 0
    evaluate_policy(plain, others, n_eval_episodes=2, warn=False)
    plain.predict(plain.observation_space.sample())
    for model in (looked, evaluated):
        assert_trained_alike(model, plain)


@pytest.mark.parametrize("name", ["PPO", "DQN", further("TRPO")])
def test_a_model_that_the_callback_binds_trains_as_one_that_was_found(name: str) -> None:
    # What is selected by default depends on the algorithm, which is not looked up the second time.
    given: dict[str, Any] = {"preset": "cpc", "select_inputs": True}
    found = build(name, **given).learn(N_STEPS)
    extractors_of(found)[0].make_updates_due()  # as the callback does
    model = build(name, **given, auto_bind=False)
    model.learn(N_STEPS, callback=InfoNCECallback())
    assert extractors_of(model)[0].last_infonce["loss"] > 0
    assert_trained_alike(found, model)


@pytest.mark.parametrize("decorated", [torch.no_grad(), torch.inference_mode()])
def test_a_rollout_without_gradients_trains_the_encoder_nevertheless(decorated: Any) -> None:
    class Sparing(PPO):
        collect_rollouts = decorated(PPO.collect_rollouts)

    env = stamped_vec_env(2, StampedVectorEnv)
    given = policy_kwargs(isolated=True, preset="cpc")
    model = Sparing("MlpPolicy", env, n_steps=16, batch_size=16, policy_kwargs=given, seed=0)
    before = weights_of(extractors_of(model)[0])
    model.learn(64)
    assert not are_same(before, weights_of(extractors_of(model)[0]))


def test_without_auto_bind_the_encoder_stays_and_a_warning_says_so() -> None:
    model = build("PPO", auto_bind=False, preset="cpc")
    before = weights_of(extractors_of(model)[0])
    with pytest.warns(
        UserWarning, match=r"which algorithm owns it.*extractor\.bind\(model\)"
    ) as caught:
        model.learn(N_STEPS)
    assert len(caught) == 1
    assert are_same(before, weights_of(extractors_of(model)[0]))


def test_decoupled_updates_beside_isolated_ones_are_refused() -> None:
    model = build("PPO")
    with pytest.raises(ValueError, match=r"`decoupled` with .*isolated=True.*isolated=False"):
        model.learn(N_STEPS, callback=InfoNCECallback(decoupled=True))
    joint = VECTOR_ALGORITHMS["PPO"](policy_kwargs(isolated=False))
    joint.learn(N_STEPS, callback=InfoNCECallback(decoupled=True))
    assert extractors_of(joint)[0].last_infonce["loss"] > 0


def test_a_schedule_scales_the_rate_of_updates_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Adam cancels a factor of the loss; where the schedule is 0, there is no update.

    Those of the last rollout come before the schedule ends.
    """
    rates: list[float] = []
    norms: list[float] = []
    step = OwnAdam.step

    def recording(self: OwnAdam, given: Any, auxiliary: Any, learning_rate: float) -> None:
        rates.append(learning_rate)
        norms.append(float(torch.nn.utils.get_total_norm(auxiliary.gradients)))
        step(self, given, auxiliary, learning_rate)

    monkeypatch.setattr(OwnAdam, "step", recording)
    model = build("PPO", encoder_updates=1)
    shares = {
        0.8: 0.1,
        0.6: 0.05,
        0.4: 0.0,
        0.2: 0.001,
        0.0: 0.002,
    }  # of progress when a rollout of 64 ends
    callback = InfoNCECallback(lambda left: 0.1 if left == 1 else shares.get(round(left, 1), 0.1))
    model.learn(320, callback=callback)
    assert rates == pytest.approx([1e-3, 5e-4, 1e-5, 2e-5])
    assert min(norms) > 0.1 * max(norms), "Adam's moments have one unit"
    assert extractors_of(model)[0].last_infonce["coef"] == 0.002


def test_a_scheduled_weight_isolates_an_encoder_whose_own_is_0() -> None:
    model = build("PPO", infonce_coef=0.0)
    (extractor,) = extractors_of(model)
    assert not extractor.is_isolated
    numbers = record_logger(model)
    model.learn(3 * 64, callback=InfoNCECallback(0.1))
    assert extractor.last_infonce["loss"] > 0
    assert not any("grad_norm" in tag for tag in numbers), "the loss does not ride on RL's backward"


def test_a_weight_that_comes_late_makes_up_for_no_update_of_rl() -> None:
    model = build("DQN", infonce_coef=0.0)
    schedule = InfoNCECallback(lambda remaining: 0.01 * (remaining < 0.5))
    model.learn(160, callback=schedule)  # which DQN updates every 4 steps, from step 64 on
    assert (model._n_updates, n_updates(model)) == (25, 20)


def test_a_schedule_of_nothing_is_refused() -> None:
    for nothing in (0.0, "lin_0.0", lambda _: 0.0):
        with pytest.raises(ValueError, match=r"isolated encoder.*infonce_coef=0 in features_extr"):
            build("PPO").learn(N_STEPS, callback=InfoNCECallback(nothing))
    joint = VECTOR_ALGORITHMS["PPO"](policy_kwargs(isolated=False))
    joint.learn(N_STEPS, callback=InfoNCECallback(0.0))


def test_updates_that_are_due_come_with_the_next_learn_or_from_the_callback() -> None:
    """A rollout leaves its updates to the next `learn`, unless the callback is there."""
    n_made = []
    for callback in (None, InfoNCECallback()):
        model = build("PPO", encoder_updates=1)
        for _ in range(4):
            model.learn(64, reset_num_timesteps=False, callback=callback)
        n_made.append(n_updates(model))
    assert n_made == [3, 4]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("DQN", {"target_update_interval": 2, "train_freq": 16, "gradient_steps": 4}),
        ("TD3", {"train_freq": 16, "gradient_steps": 4}),
        ("SAC", {"train_freq": 16, "gradient_steps": 4}),
    ],
)
def test_target_networks_read_the_encoder_that_the_others_read(
    name: str, changes: dict[str, Any]
) -> None:
    """SB3 copies into them the weights that are trained, in rollouts and between updates."""
    model = VECTOR_ALGORITHMS[name](policy_kwargs(isolated=True), **changes)
    observations = torch.as_tensor(np.stack([model.observation_space.sample() for _ in range(8)]))
    n_compared = 0

    def compare(*_: Any) -> None:
        nonlocal n_compared
        first, *others = [each(observations.float()) for each in every_extractor(model)]
        assert others
        for other in others:  # but for what SB3's average of equal numbers rounds
            torch.testing.assert_close(first, other)
        n_compared += 1

    for optimizer in optimizers(model):
        optimizer.register_step_pre_hook(compare)
    model.learn(3 * N_STEPS)
    assert n_compared > 20


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_a_frozen_encoder_that_has_counted_enough_stays(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_encoder, "N_COUNTED_FROZEN", 40)
    model = build(name).learn(N_STEPS)
    leader = every_extractor(model)[0]
    leader.get_submodule("mlp").requires_grad_(False)
    before = encoder_of(leader)
    assert before["normalizer.running_count"] >= 40
    with pytest.warns(UserWarning, match="encoder is frozen"):
        model.learn(N_STEPS, reset_num_timesteps=False)
    assert are_same(before, encoder_of(leader))


@pytest.mark.parametrize(("name", "share"), [("PPO", False), ("SAC", None)])
def test_networks_share_the_encoder_after_an_interruption_of_its_updates(
    name: str, share: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(name, share=share).learn(N_STEPS)
    step, n_steps = OwnAdam.step, 0

    def interrupted(self: OwnAdam, *given: Any) -> None:
        nonlocal n_steps
        n_steps += 1
        if n_steps == 3:
            raise KeyboardInterrupt
        step(self, *given)

    monkeypatch.setattr(OwnAdam, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.learn(N_STEPS, reset_num_timesteps=False)
    leader, *others = every_extractor(model)
    read = read_by_policy(leader, encoder_of(leader))
    assert others
    for other in others:
        assert are_same(read_by_policy(other, encoder_of(other)), read)


class LargerCritic(SACPolicy):
    """A policy of the user's own, whose critic has features of its own size."""

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> Any:
        self.features_extractor_kwargs |= {"features_dim": 24}
        return super().make_critic(features_extractor)


def test_encoders_of_other_sizes_are_trained_apart() -> None:
    model = SAC(
        LargerCritic,
        stamped_vec_env(2, StampedVectorEnv, continuous=True),
        policy_kwargs=policy_kwargs(features_dim=16),
        learning_starts=20,
    )
    assert [each.features_dim for each in extractors_of(model)] == [16, 24]
    before = [encoder_of(each) for each in extractors_of(model)]
    model.learn(N_STEPS)
    for each, former in zip(extractors_of(model), before, strict=True):
        assert not are_same(former, encoder_of(each))


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_a_gradient_reaches_observations_that_ask_for_one_and_no_parameter(name: str) -> None:
    model = build(name).learn(N_STEPS)
    extractor = extractors_of(model)[0]
    plain = torch.rand(3, 5)
    asking = plain.clone().requires_grad_()
    features = extractor(asking)
    assert torch.equal(features, extractor(plain))
    features.square().sum().backward()
    assert asking.grad is not None
    assert asking.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in extractor.encoder.parameters())


@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC"])
def test_updates_that_are_due_are_made_before_a_model_is_saved(name: str) -> None:
    model = build(name).learn(N_STEPS)
    before = encoder_of(extractors_of(model)[0])
    make_updates_due(model)
    after = encoder_of(extractors_of(model)[0])
    assert not are_same(before, after)
    make_updates_due(model)
    assert are_same(after, encoder_of(extractors_of(model)[0]))


def test_all_weights_above_0_train_alike() -> None:
    default = build("PPO").learn(N_STEPS)
    for coef in (1e-8, 100.0):
        other = build("PPO", infonce_coef=coef).learn(N_STEPS)
        assert_same_weights(default.policy, other.policy, with_own=True)
