"""A pretrained encoder in a model: its weights arrive, and stay or move as asked."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.envs import FakeImageEnv
from torch import Tensor

from rl_infonce import InfoNCECallback, InfoNCEExtractor
from rl_infonce.agents.pretrained import use_encoder
from rl_infonce.agents.saved_extractor import read_encoder
from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.encoder_file import save_encoder
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.moving_average import MovingAverage
from rl_infonce.networks.pixel_encoder import PixelEncoder
from tests.draws import seeded
from tests.sb3.worlds import noise_images, weights_of

SHAPE = (4, 40, 40)
INFONCE: dict[str, Any] = {
    "features_extractor_class": InfoNCEExtractor,
    "features_extractor_kwargs": {"features_dim": 64, "n_pairs": 8, "channels_last": False},
}
STOCK: dict[str, Any] = {"features_extractor_kwargs": {"features_dim": 64}}
OFF_POLICY = {"buffer_size": 100, "learning_starts": 10, "batch_size": 8, "train_freq": 4}
SIZES: dict[Any, dict[str, int]] = {
    PPO: {"n_steps": 32, "batch_size": 16, "n_epochs": 1},
    A2C: {"n_steps": 32},
    DQN: OFF_POLICY,
    SAC: OFF_POLICY,
}


def env(*, discrete: bool = True) -> FakeImageEnv:
    return FakeImageEnv(
        screen_height=40, screen_width=40, n_channels=4, channel_first=True, discrete=discrete
    )


def encoder(seed: int = 7, **changes: Any) -> PixelEncoder:
    given: dict[str, Any] = {"image_shape": SHAPE, "features_dim": 64, **changes}
    return PixelEncoder(**given, generator=seeded(seed))


def model_of(algorithm: Any, policy_kwargs: dict[str, Any]) -> Any:
    world = env(discrete=algorithm is not SAC)
    kwargs = dict(policy_kwargs)
    return algorithm("CnnPolicy", world, policy_kwargs=kwargs, seed=0, **SIZES[algorithm])


def extractor_weights(model: Any) -> list[Tensor]:
    weights = weights_of(model.policy)
    return [weights[name] for name in weights if ".cnn." in name or ".linear." in name]


@pytest.mark.parametrize("algorithm", [PPO, A2C, DQN, SAC])
@pytest.mark.parametrize("policy_kwargs", [STOCK, INFONCE], ids=["stock", "infonce"])
def test_features_are_those_of_the_encoder(
    tmp_path: Path, algorithm: Any, policy_kwargs: dict[str, Any]
) -> None:
    model = model_of(algorithm, policy_kwargs)
    pretrained = encoder()
    save_encoder(pretrained, tmp_path / "encoder.safetensors")
    use_encoder(model, tmp_path / "encoder.safetensors")
    model.save(tmp_path / "model.zip")
    images = noise_images(5, SHAPE)
    with torch.no_grad():
        assert torch.equal(read_encoder(tmp_path / "model.zip")(images), pretrained(images))
    per_extractor = len(pretrained.state_dict())
    weights = extractor_weights(model)
    assert len(weights) % per_extractor == 0
    for index, tensor in enumerate(weights):  # of target networks, too
        assert torch.equal(tensor, list(pretrained.state_dict().values())[index % per_extractor])


FORMS: dict[str, dict[str, Any]] = {
    "elu": {"activation": "elu"},
    "layer": {"activation": "crelu", "normalization": "layer"},
    "simplicial": {"feature_activation": "simplicial"},
}


@pytest.mark.parametrize("form", FORMS)
def test_an_encoder_of_another_form_fits_an_extractor_of_that_form_alone(
    tmp_path: Path, form: str
) -> None:
    kwargs = {**INFONCE["features_extractor_kwargs"], **FORMS[form]}
    model = model_of(PPO, {**INFONCE, "features_extractor_kwargs": kwargs})
    pretrained = encoder(form=EncoderForm(**FORMS[form]))
    with torch.no_grad():
        for parameter in pretrained.parameters():
            parameter.add_(0.01)  # also gains and biases, which are alike before training
    use_encoder(model, pretrained, freeze=True)
    model.save(tmp_path / "model.zip")
    images = noise_images(5, SHAPE)
    with torch.no_grad():
        assert torch.equal(read_encoder(tmp_path / "model.zip")(images), pretrained(images))
    for stranger in (model_of(PPO, INFONCE), model_of(PPO, STOCK)):
        name, value = next(iter(FORMS[form].items()))
        with pytest.raises(ValueError, match=rf"{name}={value}.*: \w+ {value} instead of"):
            use_encoder(stranger, pretrained)
    with pytest.raises(ValueError, match="instead of"):
        use_encoder(model, encoder())


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("policy_kwargs", [STOCK, INFONCE], ids=["stock", "infonce"])
@pytest.mark.parametrize("freeze", [True, False])
def test_a_frozen_encoder_stays_and_another_learns(
    algorithm: Any, policy_kwargs: dict[str, Any], freeze: bool
) -> None:
    model = model_of(algorithm, policy_kwargs)
    use_encoder(model, encoder(), freeze=freeze)
    warned = freeze and policy_kwargs is INFONCE
    before, heads = extractor_weights(model), [p.clone() for p in model.policy.parameters()]
    with pytest.warns(UserWarning, match="encoder is frozen") if warned else nullcontext():
        model.learn(64)
    changed = [not torch.equal(a, b) for a, b in zip(before, extractor_weights(model), strict=True)]
    assert any(changed) != freeze
    assert any(not torch.equal(a, b) for a, b in zip(heads, model.policy.parameters(), strict=True))
    if freeze and policy_kwargs is INFONCE:
        extractor = next(m for m in model.policy.modules() if isinstance(m, InfoNCEExtractor))
        assert extractor.last_infonce["loss"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "atc"},
        {"isolated": True, "policy_encoder_tau": 0.01, "align_features": True},
    ],
    ids=["moving_target", "averaged_and_aligned"],
)
def test_nothing_of_a_trained_encoder_stays_beside_the_one_that_is_given(
    settings: dict[str, Any],
) -> None:
    own = INFONCE["features_extractor_kwargs"]
    kwargs = {**INFONCE, "features_extractor_kwargs": {**own, **settings}}
    model = model_of(PPO, kwargs)
    model.learn(64)
    extractor, given = model.policy.features_extractor, encoder()
    followers = [m for m in extractor.modules() if isinstance(m, MovingAverage)]
    assert followers
    assert all(each.has_begun for each in followers)
    use_encoder(model, given)
    images = noise_images(4, SHAPE)
    features = model.policy.extract_features(images, extractor)
    torch.testing.assert_close(features, given(images))
    assert not any(each.has_begun for each in followers)
    model.learn(64)
    assert all(each.has_begun for each in followers)


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("decoupled", [False, True])
def test_an_extractor_frozen_as_sb3_advises_stays_and_the_rest_learns(
    algorithm: Any, decoupled: bool
) -> None:
    model = model_of(algorithm, INFONCE)
    extractors = [m for m in model.policy.modules() if isinstance(m, InfoNCEExtractor)]
    frozen = [parameter for each in extractors for parameter in each.parameters()]
    for parameter in frozen:
        parameter.requires_grad = False
    before = [parameter.clone() for parameter in model.policy.parameters()]
    with pytest.warns(UserWarning, match="InfoNCE loss trains nothing") as caught:
        model.learn(64, callback=InfoNCECallback(decoupled=decoupled))
    assert len(caught) == 1
    pairs = list(zip(before, model.policy.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in pairs if any(b is parameter for parameter in frozen))


@pytest.mark.parametrize("decoupled", [False, True])
def test_frozen_heads_stay_and_the_encoder_learns(decoupled: bool) -> None:
    model = model_of(PPO, INFONCE)
    (extractor,) = (m for m in model.policy.modules() if isinstance(m, InfoNCEExtractor))
    extractor.infonce.requires_grad_(False)
    heads = [parameter.clone() for parameter in extractor.infonce.parameters()]
    encoder_weights = [tensor.clone() for tensor in extractor_weights(model)]
    model.learn(64, callback=InfoNCECallback(decoupled=decoupled))
    assert all(map(torch.equal, heads, extractor.infonce.parameters()))
    assert not any(map(torch.equal, encoder_weights, extractor_weights(model)))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda: encoder(image_shape=(4, 44, 44)), ValueError, "images (4, 44, 44) instead of"),
        (lambda: encoder(features_dim=32), ValueError, "instead of (64, 64)"),
        (lambda: encoder(divide_by=1), ValueError, "pixels divided by 1 instead of 255"),
        (
            lambda: encoder(encoder="impala"),
            ValueError,
            '"impala 64 on 4x40x40, fp32": cnn.0.weight',
        ),
        (lambda: STDIMEncoder(torch.Generator()), TypeError, "--encoder nature"),
        (lambda: "nowhere.safetensors", FileNotFoundError, "nowhere.safetensors"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_changes(
    given: Any, error: type[Exception], message: str
) -> None:
    model = model_of(PPO, STOCK)
    before = extractor_weights(model)
    with pytest.raises(error) as caught:
        use_encoder(model, given())
    assert message in str(caught.value)
    for a, b in zip(before, extractor_weights(model), strict=True):
        assert torch.equal(a, b)


def test_a_model_without_images_is_refused() -> None:
    with pytest.raises(ValueError, match="NatureCNN or InfoNCEExtractor"):
        use_encoder(PPO("MlpPolicy", "CartPole-v1"), encoder())
