"""With coefficient 0, and wherever the loss must stay out, nothing changes to the last bit."""

from typing import Any

import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv

from rl_infonce import InfoNCEExtractor
from rl_infonce.presets import PRESETS
from tests.further import further, with_further
from tests.sb3.fakes import StampedEnv, stamped_vec_env
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    RELATIVES,
    TRPO_BUILD,
    assert_same_weights,
    extractors_of,
    n_updates,
    policy_kwargs,
    streams,
    weights_of,
)


class PlainCNN(NatureCNN):
    """NatureCNN under another name, so that SB3 treats it as it treats the plugin."""


class ChannelsLastCNN(NatureCNN):
    """NatureCNN whose input is laid out channels-last."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return super().forward(observations.contiguous(memory_format=torch.channels_last))


@pytest.mark.slow
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "SAC"])
def test_coefficient_0_is_the_plain_network(name: str, channels_last: bool) -> None:
    plain = ALGORITHMS[name](policy_kwargs(ChannelsLastCNN if channels_last else PlainCNN))
    plain.learn(N_STEPS)
    after_plain = streams()
    model = ALGORITHMS[name](policy_kwargs(infonce_coef=0.0, channels_last=channels_last))
    model.learn(N_STEPS)
    assert_same_weights(model.policy, plain.policy)
    assert streams() == after_plain


def environment_streams(model: BaseAlgorithm) -> tuple[Any, ...]:
    env = model.get_env()
    assert env is not None
    sampled = model.action_space.np_random.bit_generator.state
    return sampled, [rng.bit_generator.state for rng in env.get_attr("rng")]


@pytest.mark.slow
@pytest.mark.parametrize("name", with_further(ALGORITHMS, RELATIVES))
def test_training_with_the_loss_draws_as_much_from_every_stream_as_without(name: str) -> None:
    plain = ALGORITHMS[name](policy_kwargs(PlainCNN)).learn(N_STEPS)
    expected = streams(), environment_streams(plain)
    views: dict[str, Any] = {"augmentation": "random_shift"}
    if name == "PPO":
        views = {"preset": "curl"}
    model = ALGORITHMS[name](policy_kwargs(infonce_coef=1.0, **views))
    model.learn(N_STEPS)
    assert extractors_of(model)[0].last_infonce["loss"] > 0
    assert (streams(), environment_streams(model)) == expected


def test_encoder_entries_of_the_state_dict_are_natures() -> None:
    space = stamped_vec_env(1).observation_space
    plain = NatureCNN(space, features_dim=16)
    extractor = InfoNCEExtractor(space, features_dim=16, preset="atc")
    encoder = {n: w for n, w in extractor.state_dict().items() if n.startswith(("cnn", "linear"))}
    plain.load_state_dict(encoder, strict=True)
    images = torch.rand(3, *(space.shape or ()))
    extractor.eval()
    torch.testing.assert_close(extractor(images), plain(images))


@pytest.mark.parametrize("preset", PRESETS)
def test_building_the_plugin_draws_nothing_from_the_hosts_streams(preset: str) -> None:
    ALGORITHMS["PPO"](policy_kwargs(PlainCNN))
    after_plain = streams()
    # between two views of one image there are no actions
    own: dict[str, Any] = {"context": "gru", "action_conditioning": preset != "curl"}
    own["preset"] = preset
    if preset == "action_cpc":
        own |= {"input_sparsity": 0.0, "select_inputs": False}  # which are for vectors
    ALGORITHMS["PPO"](policy_kwargs(**own))
    assert streams() == after_plain


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def train(seed: int | None) -> dict[str, torch.Tensor]:
        model = ALGORITHMS["PPO"](policy_kwargs(seed=seed)).learn(N_STEPS)
        return weights_of(model.policy)

    first, again, other = train(1), train(1), train(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(
        first["features_extractor.cnn.0.weight"], other["features_extractor.cnn.0.weight"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n_losses"),
    [
        ("PPO", 2 * 2 * 2),
        ("MaskablePPO", 2 * 2 * 2),
        ("RecurrentPPO", 2 * 2 * 2),
        ("A2C", 3),
        ("DQN", 9),
        ("QRDQN", 9),
        ("SAC", 9 * 2),
        ("TQC", 9 * 2),
        ("TD3", 9 + 4),
        ("CrossQ", 9 + 3),
    ],
)
def test_only_gradient_steps_compute_the_loss_and_once_for_each_encoder(
    name: str, n_losses: int, computed: list[str]
) -> None:
    # SAC, TQC and CrossQ ask the critic a second time, for the actor's loss.
    n_steps = 128 if "PPO" in name else N_STEPS
    ALGORITHMS[name]().learn(n_steps)
    assert len(computed) == n_losses


class OneSample(PPO):
    """Takes several steps on all rows of a rollout."""

    def train(self) -> None:
        self.policy.set_training_mode(True)
        rollout_data = next(self.rollout_buffer.get(None))
        for _ in range(5):
            values, log_prob, _ = self.policy.evaluate_actions(
                rollout_data.observations, rollout_data.actions.long().flatten()
            )
            assert values is not None
            loss = values.mean() + log_prob.mean()
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.policy.optimizer.step()
        self._n_updates += 5


@pytest.mark.slow
@pytest.mark.parametrize("pairs_from", ["buffer", "minibatch"])
def test_every_step_of_an_algorithm_of_ones_own_computes_the_loss(
    pairs_from: str, computed: list[str]
) -> None:
    env = stamped_vec_env(2, lengths=(9, 15))
    kwargs = policy_kwargs(pairs_from=pairs_from)
    model = OneSample("CnnPolicy", env, n_steps=32, policy_kwargs=kwargs, batch_size=32)
    model.learn(64)
    assert n_updates(model) == 5
    assert len(computed) == (5 if pairs_from == "buffer" else 0)


def test_coefficient_0_computes_no_loss(computed: list[str]) -> None:
    ALGORITHMS["PPO"](policy_kwargs(infonce_coef=0.0)).learn(N_STEPS)
    assert not computed


def test_prediction_and_evaluation_never_compute_the_loss(computed: list[str]) -> None:
    monitored = DummyVecEnv([lambda: Monitor(StampedEnv())])
    evaluate = EvalCallback(monitored, eval_freq=16, n_eval_episodes=2, verbose=0)
    plain = ALGORITHMS["PPO"]()
    plain.learn(N_STEPS)
    without_evaluation = len(computed)
    computed.clear()
    model = ALGORITHMS["PPO"]().learn(N_STEPS, callback=evaluate)
    assert len(computed) == without_evaluation
    computed.clear()
    evaluate_policy(model, monitored, n_eval_episodes=2)
    model.predict(model.observation_space.sample())
    assert not computed
    assert_same_weights(model.policy, plain.policy)


@pytest.mark.slow
@pytest.mark.parametrize("share", [True, further(False)])
def test_trpo_warns_once_and_equals_the_plain_network(share: bool) -> None:
    plain = TRPO_BUILD(policy_kwargs(ChannelsLastCNN) | {"share_features_extractor": share})
    plain.learn(N_STEPS)
    model = TRPO_BUILD(policy_kwargs() | {"share_features_extractor": share})
    with pytest.warns(
        UserWarning, match=r"TRPO differentiates .* InfoNCECallback\(decoupled=True\) trains"
    ) as caught:
        model.learn(N_STEPS)
    assert len(caught) == 1
    assert_same_weights(model.policy, plain.policy)


def test_an_unreadable_buffer_warns_once_and_equals_the_plain_network() -> None:
    plain = ALGORITHMS["PPO"](policy_kwargs(ChannelsLastCNN)).learn(N_STEPS)
    model = ALGORITHMS["PPO"]()
    buffer: Any = model.rollout_buffer  # type: ignore[attr-defined]
    original_get = buffer.get

    def get_and_forget(batch_size: int | None) -> Any:
        for batch in original_get(batch_size):
            observations, buffer.observations = buffer.observations, None
            yield batch
            buffer.observations = observations

    buffer.get = get_and_forget
    with pytest.warns(UserWarning, match=r"^The InfoNCE loss is off:") as caught:
        model.learn(N_STEPS)
    assert len(caught) == 1
    assert_same_weights(model.policy, plain.policy)
