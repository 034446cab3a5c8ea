"""Agents with the usual settings, and what may be changed of them."""

from typing import Any

import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from rl_infonce.agents.features import feature_function
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.sb3.callbacks import trained_extractors
from rl_infonce.training.algorithms import network_for
from rl_infonce.training.make_agent import make_agent
from rl_infonce.training.rl_zoo import ALGORITHMS, N_ENVS
from tests.draws import seeded
from tests.environments.worlds import CONTINUOUS, DICT, IMAGES
from tests.further import with_further
from tests.sb3.worlds import noise_images


def make(algorithm: str = "ppo", task: str = "pong", **settings: Any) -> Any:
    given: dict[str, Any] = {"n_timesteps": 1000, "n_envs": 1, "seed": 0, "device": "cpu"}
    return make_agent(algorithm, task, **{"extractor": {}, **given, **settings})


RELATIVES = ("qrdqn", "td3", "tqc", "crossq", "ppo_mask", "ppo_lstm")
"""Algorithms that train as DQN, SAC or PPO does."""
SMALL: dict[str, Any] = {"n_pairs": 8, "features_dim": 16}


def short(algorithm: str) -> dict[str, Any]:
    """Return hyperparameters with which an agent has updates within 64 steps."""
    return {"learning_starts": 30, "train_freq": 4} if N_ENVS[algorithm] == 1 else {"n_steps": 16}


def small(algorithm: str, task: str, **settings: Any) -> Any:
    """Return an agent that trains within 64 steps."""
    extractor = {name: each for name, each in SMALL.items() if task != DICT or name == "n_pairs"}
    return make(algorithm, task, extractor=extractor, hyperparameters=short(algorithm), **settings)


@pytest.mark.atari
def test_rl_zoos_settings_stand_on_atari_unless_changed() -> None:
    model = make()
    assert (model.n_steps, model.batch_size, model.n_epochs) == (128, 128, 4)
    assert [model.lr_schedule(1.0), model.lr_schedule(0.5)] == [2.5e-4, 1.25e-4]
    assert [model.clip_range(1.0), model.clip_range(0.0)] == [0.1, 0.0]
    changes = {"n_epochs": 6, "n_steps": 32, "learning_rate": 1e-3, "clip_range": "lin_0.2"}
    model = make(hyperparameters=changes)
    assert (model.n_steps, model.batch_size, model.n_epochs) == (32, 32, 6)
    assert [model.lr_schedule(0.5), model.clip_range(0.5)] == [1e-3, 0.1]
    assert make("dqn", hyperparameters={"buffer_size": 50}).replay_buffer.buffer_size == 50
    assert make("dqn", hyperparameters={"n_steps": 3}).batch_size == 32, "of 3-step returns"


def test_a_lean_replay_buffer_gets_what_it_needs() -> None:
    lean: dict[str, Any] = {"optimize_memory_usage": True, "buffer_size": 1e2}
    buffer = make("sac", CONTINUOUS, hyperparameters=lean).replay_buffer
    assert (buffer.optimize_memory_usage, buffer.buffer_size) == (True, 100)
    with pytest.raises(ValueError, match="SAC of Stable-Baselines3: NStepReplayBuffer"):
        make("sac", CONTINUOUS, hyperparameters={**lean, "n_steps": 3})


def test_sb3s_settings_stand_elsewhere() -> None:
    model = make("ppo", IMAGES, n_envs=2)
    assert (model.n_steps, model.batch_size, model.n_epochs) == (1024, 64, 10)
    assert model.lr_schedule(0.5) == 3e-4
    assert make("trpo", IMAGES, hyperparameters={"n_steps": 32}).batch_size == 32
    assert make("ppo_lstm", IMAGES, n_envs=2).n_steps == 128
    assert make("a2c", IMAGES, n_envs=2).n_steps == 5
    model = make("sac", CONTINUOUS, hyperparameters={"learning_rate": "lin_1e-3"})
    assert (model.batch_size, model.learning_starts, model.lr_schedule(0.5)) == (256, 100, 5e-4)


def test_a_replay_buffer_holds_no_more_than_is_trained() -> None:
    assert make("sac", CONTINUOUS, n_timesteps=300).replay_buffer.buffer_size == 300
    assert make("qrdqn", IMAGES, n_timesteps=2, n_envs=3).replay_buffer.buffer_size == 1
    changed = make("td3", CONTINUOUS, hyperparameters={"buffer_size": 40})
    assert changed.replay_buffer.buffer_size == 40


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", with_further(ALGORITHMS, RELATIVES))
def test_every_algorithm_learns_with_the_loss(algorithm: str) -> None:
    is_continuous = algorithm in ("sac", "td3", "tqc", "crossq")
    model = small(algorithm, CONTINUOUS if is_continuous else IMAGES)
    if algorithm == "trpo":
        with pytest.warns(UserWarning, match="decoupled"):
            model.learn(64)
        return
    model.learn(64)
    numbers = [each.last_infonce for each in trained_extractors(model.policy)]
    assert any("loss" in each for each in numbers)


def test_the_layers_on_vectors_are_sb3s_own() -> None:
    model = make("td3", "Pendulum-v1")
    assert [each.out_features for each in model.actor.mu if hasattr(each, "out_features")] == [
        *(400, 300, 1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_dictionaries_with_images_are_learned_from(algorithm: str) -> None:
    model = small(algorithm, DICT, normalize=True).learn(64)
    assert type(model.policy).__name__.startswith("MultiInput") or algorithm == "dqn"
    assert "loss" in trained_extractors(model.policy)[0].last_infonce


def test_dictionaries_are_refused_where_no_policy_takes_them() -> None:
    pytest.importorskip("sb3_contrib")
    space = spaces.Dict(seen=spaces.Box(0, 1, (3,)))
    with pytest.raises(ValueError, match=r"dictionaries, which Fetch-v4 observes, got crossq"):
        network_for("crossq", space, "Fetch-v4")
    assert network_for("sac", space, "Fetch-v4").policy == "MultiInputPolicy"


def test_a_normalizer_has_the_discount_of_the_algorithm() -> None:
    def discount(**changes: Any) -> float:
        hyperparameters = {"n_steps": 16, **changes}
        env = make("ppo", IMAGES, normalize=True, hyperparameters=hyperparameters).env
        normalizer = env if isinstance(env, VecNormalize) else env.venv
        assert isinstance(normalizer, VecNormalize)
        return float(normalizer.gamma)

    assert [discount(), discount(gamma=0.5)] == [0.99, 0.5]


def test_masks_need_an_environment_that_has_them() -> None:
    assert small("ppo_mask", IMAGES).n_steps == 16
    with pytest.raises(ValueError, match=r"has action_masks\(\), got CartPole-v1 without"):
        small("ppo_mask", "CartPole-v1")


def test_what_sb3_refuses_by_an_assertion_is_an_error_of_values() -> None:
    with pytest.raises(ValueError, match=r"PPO of Stable-Baselines3: .*batch_size"):
        make("ppo", IMAGES, hyperparameters={"batch_size": 1})


@pytest.mark.atari
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_frozen_random_encoder_stays(algorithm: str) -> None:
    changes = {"n_steps": 16} if algorithm == "ppo" else {"learning_starts": 8, "buffer_size": 32}
    model = make(algorithm, hyperparameters=changes, freeze=True)
    assert model.policy_kwargs["features_extractor_kwargs"]["infonce_coef"] == 0
    before = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    model.learn(32)
    changed = {n for n, t in model.policy.state_dict().items() if not torch.equal(t, before[n])}
    assert changed
    assert not [name for name in changed if ".cnn." in name or ".linear." in name]


@pytest.mark.atari
def test_the_form_of_a_pretrained_encoder_is_taken_over() -> None:
    form = EncoderForm(activation="elu", normalization="layer", feature_activation="linear")
    encoder = PixelEncoder((4, 84, 84), 32, generator=seeded(), form=form)
    model = make(encoder=encoder, extractor={"activation": "elu", "encoder": "nature"})
    images = noise_images(3, (4, 84, 84))
    with torch.no_grad():
        found = feature_function(model.policy)(images)
        torch.testing.assert_close(found, encoder(images), rtol=1e-4, atol=1e-5)
    assert model.policy.features_extractor.settings.normalization == "layer"
    with pytest.raises(ValueError, match=r"`activation` of the pretrained .* 'elu', got 'crelu'"):
        make(encoder=encoder, extractor={"activation": "crelu"})
    with pytest.raises(ValueError, match=r"`encoder` of the pretrained .* 'nature', got 'impala'"):
        make(encoder=encoder, extractor={"encoder": "impala"})


def test_an_encoder_of_images_is_refused_where_vectors_are_observed() -> None:
    encoder = PixelEncoder((4, 84, 84), generator=seeded(0))
    with pytest.raises(ValueError, match=r"`--pretrained`.*got it with Pendulum-v1, .*Box"):
        make("sac", "Pendulum-v1", encoder=encoder)
    with pytest.raises(ValueError, match=rf"`--pretrained`.*got it with {DICT}, .*Dict\("):
        make("ppo", DICT, encoder=encoder)
