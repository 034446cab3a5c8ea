"""PPO and DQN with RL Zoo's settings, and what may be changed of them."""

from typing import Any

import pytest
import torch

from rl_infonce.agents.features import feature_function
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.training.atari_model import check_hyperparameters, make_atari_model
from tests.draws import seeded
from tests.sb3.worlds import noise_images

pytestmark = pytest.mark.atari


def make(algorithm: str = "ppo", **settings: Any) -> Any:
    given: dict[str, Any] = {"n_timesteps": 1000, "n_envs": 1, "seed": 0, "device": "cpu"}
    given["extractor"] = settings.pop("extractor", {})
    return make_atari_model(algorithm, "pong", **given, **settings)


def test_rl_zoos_settings_stand_unless_changed() -> None:
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


NO_SCHEDULE = '`learning_rate` as a number or "lin_0.1".* got {!r}'


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ("ppo", {"n_epoch": 1}, "n_epochs"),
        ("ppo", {"policy_kwargs": 1}, "hyperparameter"),
        ("ppo", {"_init_setup_model": 1}, "hyperparameter"),
        ("ppo", {"rollout_buffer_class": 1}, "hyperparameter"),
        ("ppo", {"buffer_size": 1}, "hyperparameter"),
        ("dqn", {"n_epochs": 1}, "hyperparameter"),
        ("ppo", {"ent_coef": "lin_0.1"}, r"schedule of \['clip_range'.*got 'ent_coef'"),
        *(
            ("ppo", {"learning_rate": text}, NO_SCHEDULE.format(text))
            for text in ("fast", "lin_fast", "lin_inf", "0.1")
        ),
    ],
)
def test_hyperparameters_that_are_none_are_refused(
    algorithm: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_hyperparameters(algorithm, given)


def test_what_sb3_refuses_by_an_assertion_is_an_error_of_values() -> None:
    with pytest.raises(ValueError, match=r"PPO of Stable-Baselines3: .*batch_size"):
        make("ppo", hyperparameters={"batch_size": 1})


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


def test_the_form_of_a_pretrained_encoder_is_taken_over() -> None:
    form = EncoderForm(activation="elu", normalization="layer", feature_activation="linear")
    encoder = PixelEncoder((4, 84, 84), 32, generator=seeded(), form=form)
    model = make(encoder=encoder, extractor={"activation": "elu"})
    images = noise_images(3, (4, 84, 84))
    with torch.no_grad():
        found = feature_function(model.policy)(images)
        torch.testing.assert_close(found, encoder(images), rtol=1e-4, atol=1e-5)
    assert model.policy.features_extractor.settings.normalization == "layer"
    with pytest.raises(ValueError, match=r"`activation` of the pretrained .* 'elu', got 'crelu'"):
        make(encoder=encoder, extractor={"activation": "crelu"})
