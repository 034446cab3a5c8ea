"""InfoNCECallback binds, schedules and decouples; the logger gets every diagnostic."""

import io
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps
from stable_baselines3.common.logger import HumanOutputFormat, Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce import InfoNCECallback, InfoNCEExtractor
from rl_infonce.presets import PRESETS
from rl_infonce.sb3.session import Session
from tests.further import further
from tests.sb3.test_gradients import Gradients, first_gradients
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    TRPO_BUILD,
    VECTOR_ALGORITHMS,
    assert_all_moved,
    assert_same_weights,
    extractors_of,
    policy_kwargs,
    record_logger,
    weights_of,
)


class RecordCoefficient(BaseCallback):
    """Notes the coefficient after every rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def _on_rollout_end(self) -> None:
        self.seen.append(extractors_of(self.model)[0].infonce_coef)

    def _on_step(self) -> bool:
        return True


OWN = PRESETS["cpc"].infonce_coef
SHORT_ROLLOUTS = {"n_steps": 16, "batch_size": 32, "n_epochs": 1}
"""Of 32 steps with the two environments of PPO, each with one update."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [OWN, OWN, OWN, OWN]),
        (0.5, [0.5, 0.5, 0.5, 0.5]),
        ("lin_0.4", [0.3, 0.2, 0.1, 0.0]),
        (lambda remaining: 0.2 * remaining, [0.15, 0.1, 0.05, 0.0]),
        (0.0, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_coefficient_follows_its_schedule(given: Any, expected: list[float]) -> None:
    model, recorded = ALGORITHMS["PPO"](**SHORT_ROLLOUTS), RecordCoefficient()
    model.learn(4 * 32, callback=[InfoNCECallback(given), recorded])
    assert recorded.seen == pytest.approx(expected)
    assert extractors_of(model)[0].infonce_coef == OWN


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", "DQN", further("SAC")])
def test_the_coefficient_goes_with_the_learning_rate(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = SHORT_ROLLOUTS if name == "PPO" else {}
    model: Any = ALGORITHMS[name](learning_rate=lambda remaining: 1e-4 * remaining, **sizes)
    optimizer = (model.actor if name == "SAC" else model.policy).optimizer
    rates: list[tuple[float, float]] = []
    original = InfoNCEExtractor.infonce_loss

    def recording(self: InfoNCEExtractor, experience: Any) -> Any:
        rates.append((1e4 * optimizer.param_groups[0]["lr"], self.infonce_coef))
        return original(self, experience)

    monkeypatch.setattr(InfoNCEExtractor, "infonce_loss", recording)
    for reset in (True, True, False):
        model.learn(
            96, callback=InfoNCECallback(lambda remaining: remaining), reset_num_timesteps=reset
        )
    assert len(set(rates)) >= 3
    assert all(coef == pytest.approx(rate) for rate, coef in rates)


def test_a_rollout_past_the_end_has_no_progress_below_0() -> None:
    model, recorded = ALGORITHMS["PPO"](), RecordCoefficient()
    model.learn(100, callback=[InfoNCECallback(lambda remaining: remaining), recorded])
    assert recorded.seen == pytest.approx([0.36, 0.0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"infonce_coef": -1.0}, ValueError, r"`infonce_coef`.*-1"),
        ({"infonce_coef": math.nan}, ValueError, r"`infonce_coef`.*nan"),
        ({"infonce_coef": "cos_0.1"}, ValueError, r"`infonce_coef`.*lin_0\.1.*cos_0\.1"),
        ({"infonce_coef": "lin_x"}, ValueError, r"`infonce_coef`.*lin_0\.1.*lin_x"),
        ({"infonce_coef": "lin_-1"}, ValueError, r"`infonce_coef`.*-1"),
        ({"decoupled": "no"}, TypeError, r"`decoupled`.*True or False.*no"),
        ({"learning_rate": 0.0}, ValueError, r"`learning_rate`.*0"),
        ({"n_updates": 0}, ValueError, r"`n_updates`.*0"),
        ({"n_updates": 1.5}, TypeError, r"`n_updates`.*1\.5"),
        ({"n_updates": 3}, ValueError, r"`n_updates` with decoupled=True, got it without"),
        ({"learning_rate": 1e-4}, ValueError, r"`learning_rate` with decoupled=True.*encoder_lea"),
    ],
)
def test_unfit_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        InfoNCECallback(**arguments)


def test_a_schedule_that_turns_negative_stops_with_the_argument_named() -> None:
    model = ALGORITHMS["PPO"]()
    with pytest.raises(ValueError, match="`infonce_coef`"):
        model.learn(256, callback=InfoNCECallback(lambda remaining: remaining - 0.9))


@pytest.mark.parametrize("in_a_list", [False, True])
def test_a_callback_that_never_hears_of_rollouts_is_refused(in_a_list: bool) -> None:
    ours = InfoNCECallback(decoupled=True)
    inner = CallbackList([ours]) if in_a_list else ours
    with pytest.raises(ValueError, match=r"inside EveryNTimesteps\. Pass both to `learn` in one"):
        ALGORITHMS["PPO"]().learn(64, callback=EveryNTimesteps(32, inner))


def test_a_bound_that_decoupled_updates_would_not_heed_is_refused() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(max_grad_ratio=0.5))
    with pytest.raises(ValueError, match=r"no `max_grad_ratio` with decoupled updates, got 0\.5"):
        model.learn(64, callback=InfoNCECallback(decoupled=True))


def test_trpo_without_the_decoupled_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"TRPO.*decoupled=True"):
        TRPO_BUILD().learn(N_STEPS, callback=InfoNCECallback())


@pytest.mark.parametrize("name", ["PPO", "SAC", further("DQN"), further("TRPO")])
def test_the_decoupled_mode_trains_encoder_and_heads_outside_the_hosts_backward(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TRPO_BUILD() if name == "TRPO" else ALGORITHMS[name]()
    extractor = extractors_of(model)[0]
    host_saw: list[bool] = []
    original = Session.may_attach

    def recording(self: Session) -> bool:
        host_saw.append(original(self))
        return host_saw[-1]

    monkeypatch.setattr(Session, "may_attach", recording)
    before = weights_of(extractor)
    model.learn(N_STEPS, callback=InfoNCECallback(decoupled=True))
    assert host_saw
    assert not any(host_saw)
    assert_all_moved(extractor, before)
    assert extractor.last_infonce["loss"] > 0
    if name != "TRPO":
        assert original(extractor._session)  # attaches again once learn() has ended


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_in_decoupled_mode_the_host_gets_its_own_gradient_alone(name: str) -> None:
    """The first update comes before any decoupled one, so that both encoders are equal."""

    def gradients(coef: float, callback: InfoNCECallback | None = None) -> Gradients:
        model: Any = ALGORITHMS[name](policy_kwargs(infonce_coef=coef))
        return first_gradients(model, model.policy.optimizer, callback)

    expected = gradients(0.0)
    got = gradients(5.0, InfoNCECallback(decoupled=True))
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[entry], got[entry]) for entry in got)


class Interrupt(BaseCallback):
    """Ctrl-C, as the rollout that reaches `at` timesteps ends or in the middle of one."""

    def __init__(self, at: int, *, in_rollout: bool) -> None:
        super().__init__()
        self.at = at
        self.in_rollout = in_rollout

    def _on_step(self) -> bool:
        if self.in_rollout and self.num_timesteps >= self.at:
            raise KeyboardInterrupt
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps >= self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("in_rollout", [False, True])
@pytest.mark.parametrize("reset_num_timesteps", [False, True])
def test_after_an_interrupted_decoupled_run_the_plain_one_attaches_again(
    in_rollout: bool, reset_num_timesteps: bool
) -> None:
    model = ALGORITHMS["PPO"]()
    (extractor,) = extractors_of(model)
    callbacks = [InfoNCECallback(decoupled=True), Interrupt(64, in_rollout=in_rollout)]
    with pytest.raises(KeyboardInterrupt):
        model.learn(256, callback=callbacks)
    assert not extractor.last_infonce
    model.learn(64, reset_num_timesteps=reset_num_timesteps)
    assert extractor.last_infonce["loss"] > 0


def test_an_interrupted_schedule_leaves_the_next_run_its_own_coefficient() -> None:
    model = ALGORITHMS["PPO"]()
    with pytest.raises(KeyboardInterrupt):
        model.learn(256, callback=[InfoNCECallback(0.7), Interrupt(64, in_rollout=False)])
    model.learn(64)
    assert extractors_of(model)[0].last_infonce["coef"] == OWN


def test_an_interrupted_callback_forgets_what_the_run_recorded(computed: list[str]) -> None:
    callback = InfoNCECallback(decoupled=True)
    with pytest.raises(KeyboardInterrupt):
        ALGORITHMS["PPO"]().learn(256, callback=[callback, Interrupt(64, in_rollout=False)])
    assert not computed
    ALGORITHMS["PPO"]().learn(64, callback=callback)
    assert len(computed) == 16


class RecordWeights(BaseCallback):
    """Keeps the encoder's weights at the start of every rollout and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def _on_rollout_start(self) -> None:
        encoder = extractors_of(self.model)[0].encoder.parameters()
        self.seen.append(torch.cat([weights.detach().flatten() for weights in encoder]))

    _on_training_end = _on_rollout_start

    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        (0.5, [1.0, 1.0, 1.0, 1.0]),
        (lambda remaining: 0.1 if remaining > 0.6 else 0.001, [1.0, 0.01, 0.01, 0.01]),
        (lambda remaining: 0.1 if remaining < 0.4 else 0.0, [0.0, 0.0, 1.0, 1.0]),
        (lambda remaining: 0.1 if 0.4 < remaining < 0.6 else 0.0, [0.0, 1.0, 0.0, 0.0]),
    ],
)
def test_decoupled_updates_are_as_large_as_the_schedule_says(
    schedule: Any, shares: list[float]
) -> None:
    model = ALGORITHMS["PPO"](learning_rate=0.0, **SHORT_ROLLOUTS)
    recorded = RecordWeights()
    callback = InfoNCECallback(schedule, decoupled=True, n_updates=1, learning_rate=1e-4)
    model.learn(4 * 32, callback=[callback, recorded])
    moved = [float((b - a).norm()) for a, b in itertools.pairwise(recorded.seen)]
    size = math.sqrt(len(recorded.seen[0]))
    assert len(moved) == 4
    for distance, share in zip(moved, shares, strict=True):
        # Adam moves a weight by at most about its learning rate, and some not at all.
        assert 0.2 * share <= distance / (1e-4 * size) <= 1.1 * share


def test_adams_moments_continue_in_a_second_learn_and_start_anew_for_another_model() -> None:
    def n_steps(callback: InfoNCECallback) -> list[int]:
        ((_, adam),) = callback._optimizers.values()
        steps: list[int] = adam.get_buffer("n_steps").tolist()
        return steps

    model, other = ALGORITHMS["PPO"](), ALGORITHMS["PPO"]()
    callback = InfoNCECallback(decoupled=True, n_updates=2)
    model.learn(64, callback=callback)
    model.learn(64, callback=callback, reset_num_timesteps=False)
    assert set(n_steps(callback)) == {4}
    other.learn(64, callback=callback)
    assert set(n_steps(callback)) == {2}


def test_moments_of_another_optimizer_are_refused() -> None:
    model, callback = ALGORITHMS["PPO"](), InfoNCECallback(decoupled=True)
    callback.init_callback(model)
    moments = torch.optim.Adam(extractors_of(model)[0].parameters()).state_dict()
    with pytest.raises(RuntimeError, match=r"for OwnAdam:\s+Missing key.*n_steps"):
        callback.set_state({"optimizers": {0: moments}})


def test_the_decoupled_mode_waits_for_learning_starts(computed: list[str]) -> None:
    model = ALGORITHMS["DQN"](learning_starts=N_STEPS)
    model.learn(N_STEPS, callback=InfoNCECallback(decoupled=True))
    assert not computed
    model.learn(8, callback=InfoNCECallback(decoupled=True), reset_num_timesteps=False)
    assert len(computed) == 2


def test_a_decoupled_coefficient_of_0_updates_nothing() -> None:
    plain = ALGORITHMS["PPO"](policy_kwargs(infonce_coef=0.0)).learn(128)
    model = ALGORITHMS["PPO"]().learn(128, callback=InfoNCECallback(0.0, decoupled=True))
    assert_same_weights(model.policy, plain.policy)


def test_the_decoupled_mode_updates_after_every_rollout(computed: list[str]) -> None:
    ALGORITHMS["PPO"]().learn(3 * 64, callback=InfoNCECallback(decoupled=True, n_updates=3))
    assert len(computed) == 3 * 3


def test_decoupled_updates_leave_the_hosts_gradients_as_they_were() -> None:
    model = ALGORITHMS["PPO"]().learn(64)
    callback = InfoNCECallback(decoupled=True, n_updates=1)
    callback.init_callback(model)
    before = {n: p.grad.clone() for n, p in model.policy.named_parameters() if p.grad is not None}
    experience = extractors_of(model)[0].experience()
    assert experience is not None
    callback._step(0, experience)
    after = {n: p.grad for n, p in model.policy.named_parameters() if p.grad is not None}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], gradient) for n, gradient in after.items())


def test_the_same_schedule_serves_a_second_learn_and_another_model() -> None:
    model, other, callback = ALGORITHMS["PPO"](), ALGORITHMS["PPO"](), InfoNCECallback("lin_0.2")
    for each, reset, expected in (
        (model, True, [0.1, 0.0]),
        (model, False, [0.05, 0.0]),
        (other, True, [0.1, 0.0]),
    ):
        recorded = RecordCoefficient()
        each.learn(128, callback=[callback, recorded], reset_num_timesteps=reset)
        assert recorded.seen == pytest.approx(expected)


@pytest.mark.thorough
def test_the_same_decoupled_callback_serves_a_second_learn_and_another_model(
    computed: list[str],
) -> None:
    model, other = ALGORITHMS["PPO"](), ALGORITHMS["PPO"]()
    callback = InfoNCECallback(decoupled=True)
    for n_learns, (each, reset) in enumerate(((model, True), (model, False), (other, True)), 1):
        each.learn(128, callback=callback, reset_num_timesteps=reset)
        assert len(computed) == n_learns * 2 * 16  # the host itself computes none
    assert extractors_of(other)[0].last_infonce["loss"] > 0


TAGS = [
    "loss",
    "mi_lower_bound",
    "mi_ceiling",
    "masked_share",
    "coef",
    "n_pairs",
    "feature_std",
    "dead_features",
    "effective_rank",
    "grad_norm_rl",
    "grad_norm_infonce",
    "grad_norm_heads",
    "grad_ratio",
    "grad_cosine",
    "grad_scale",
    *(f"{name}_k{k}" for name in ("accuracy", "floor_pixels", "floor_random") for k in (4, 6)),
]


@pytest.mark.parametrize(
    ("name", "settings", "places"),
    [
        ("PPO", {}, []),
        ("DQN", {}, []),
        ("PPO", {"share_features_extractor": False}, ["pi", "vf"]),
        ("SAC", {}, ["actor", "critic"]),
        ("TD3", {"share_features_extractor": True}, []),
    ],
)
def test_several_encoders_have_curves_of_their_own(
    name: str, settings: dict[str, Any], places: list[str]
) -> None:
    model = ALGORITHMS[name](policy_kwargs() | settings)
    logged = record_logger(model)
    model.learn(N_STEPS)
    model.logger.dump()
    own = {tag: numbers[-1] for tag, numbers in logged.items() if tag.endswith("/loss")}
    own = {tag: number for tag, number in own.items() if tag.startswith("infonce/")}
    assert set(own) == {"infonce/loss", *(f"infonce/{place}/loss" for place in places)}
    assert len(set(own.values())) == len(own)
    assert len(extractors_of(model)) == max(len(places), 1)
    assert all(number > 0 for number in own.values())
    if name == "PPO" and places:
        mean = (own["infonce/pi/loss"] + own["infonce/vf/loss"]) / 2
        assert own["infonce/loss"] == pytest.approx(mean)


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_tensorboard_gets_every_diagnostic(name: str, tmp_path: Path) -> None:
    model = ALGORITHMS[name](policy_kwargs(horizons=(4, 6)), tensorboard_log=str(tmp_path))
    model.learn(256, log_interval=1)
    model.logger.dump(256)
    model.logger.close()
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder)).Reload()
    scalars = {tag for tag in events.Tags()["scalars"] if tag.startswith("infonce/")}
    assert scalars >= {f"infonce/{tag}" for tag in TAGS}
    assert all(len(tag.split("/", 1)[1]) <= 33 for tag in scalars)
    ceiling = [event.value for event in events.Scalars("infonce/mi_ceiling")]
    assert all(0 < value <= math.log(16) + 1e-6 for value in ceiling)
    for event in events.Scalars("infonce/loss"):
        assert math.isfinite(event.value)


def test_the_terminal_shows_the_loss_and_no_tag_is_cut_in_two(tmp_path: Path) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(horizons=(4, 6)))
    screen = io.StringIO()
    # HumanOutputFormat raises if two tags are equal once shortened.
    model.set_logger(Logger(str(tmp_path), [HumanOutputFormat(screen)]))
    model.learn(256)
    table = screen.getvalue()
    assert all(tag in table for tag in ("infonce/", "loss", "accuracy_k4", "mi_lower_bound"))
    assert not any(tag in table for tag in ("grad_ratio", "feature_std", "floor_pixels"))


def test_the_terminal_shows_how_many_inputs_are_selected(tmp_path: Path) -> None:
    model = VECTOR_ALGORITHMS["PPO"](policy_kwargs(isolated=True, select_inputs=True))
    screen = io.StringIO()
    model.set_logger(Logger(str(tmp_path), [HumanOutputFormat(screen)]))
    model.learn(256)
    assert "selected_inputs" in screen.getvalue()
