"""Features rebuilt from a saved model's tensors, against those of the loaded model."""

import importlib
import inspect
import json
import sys
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN, TQC, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticCnnPolicy, BasePolicy
from stable_baselines3.common.torch_layers import NatureCNN
from torch import Tensor

from rl_infonce.agents.saved_extractor import NotRebuildableError, extractor_names, read_encoder
from rl_infonce.agents.trusted_model import read_trusted_encoder
from rl_infonce.networks.encoder_file import describe, load_encoder, save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.sb3.image_encoder import ImageEncoder
from tests.agents.models import OwnCNN
from tests.attacks.forging import members_of, zip_file
from tests.sb3.fakes import IMAGE_SHAPE, StampedDictEnv, StampedEnv
from tests.sb3.worlds import ALGORITHMS, N_STEPS, noise_images, policy_kwargs, saved


class OwnPolicy(ActorCriticCnnPolicy):
    """A policy of the user's."""


IMAGES = noise_images(9)


def loaded_features(path: Path, algorithm: type[BaseAlgorithm], name: str) -> Tensor:
    """Return what SB3 makes of the images after its own loading."""
    policy: Any = algorithm.load(path, device="cpu").policy
    policy.set_training_mode(False)
    owner = policy.get_submodule(name.rpartition(".")[0])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SB3 warns where extractors are not shared
        found = BasePolicy.extract_features(owner, IMAGES, policy.get_submodule(name))
    assert isinstance(found, Tensor)
    return found


@torch.no_grad()
def features(encoder: Any) -> Tensor:
    found: Tensor = encoder(IMAGES)
    return found


ACTING = {
    DQN: "q_net.features_extractor",
    QRDQN: "quantile_net.features_extractor",
    SAC: "actor.features_extractor",
    TD3: "actor.features_extractor",
    TQC: "actor.features_extractor",
}
EXTRACTORS: dict[str, dict[str, Any]] = {
    "NatureCNN": policy_kwargs(NatureCNN),
    "default": {"features_extractor_kwargs": {"features_dim": 32}},
    "InfoNCE": policy_kwargs(),
    "impala": policy_kwargs(encoder="impala", channels_last=False),
    "bf16": policy_kwargs(precision="bf16", preset="atc"),
    "precision of the preset": policy_kwargs(precision=None),
    "elu": policy_kwargs(activation="elu", feature_activation="linear"),
    "crelu": policy_kwargs(activation="crelu", normalization="layer", encoder="impala"),
    "simplicial": policy_kwargs(feature_activation="simplicial"),
    "average, not JSON": policy_kwargs(feature_activation="average_l1", horizons=(np.int64(6),)),
    "unnormalised": policy_kwargs(NatureCNN) | {"normalize_images": False},
    "separate": policy_kwargs() | {"share_features_extractor": False},
    "unwritten": policy_kwargs(preset="spatial_cpc") | {"activation_fn": torch.nn.ReLU},
    "not JSON": policy_kwargs(preset="spatial_cpc", horizons=(np.int64(6),)),
}


@pytest.mark.parametrize("algorithm", [PPO, A2C, DQN, QRDQN, SAC, TD3, TQC, RecurrentPPO])
@pytest.mark.parametrize("extractor", ["NatureCNN", "bf16"])
def test_features_equal_the_loaded_models_for_every_algorithm(
    tmp_path: Path, algorithm: type[BaseAlgorithm], extractor: str
) -> None:
    path = saved(tmp_path, ALGORITHMS[algorithm.__name__](deepcopy(EXTRACTORS[extractor])))
    expected = loaded_features(path, algorithm, ACTING.get(algorithm, "features_extractor"))
    assert torch.equal(features(read_encoder(path)), expected)
    assert torch.equal(features(read_trusted_encoder(path)), expected)


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_features_equal_the_loaded_models_for_every_extractor(
    tmp_path: Path, extractor: str
) -> None:
    model = ALGORITHMS["PPO"](deepcopy(EXTRACTORS[extractor]))
    path = saved(tmp_path, model)
    expected = loaded_features(path, PPO, "features_extractor")
    encoder = read_encoder(path)
    save_encoder(encoder, tmp_path / "encoder.safetensors")
    assert torch.equal(features(encoder), expected)
    assert torch.equal(features(load_encoder(tmp_path / "encoder.safetensors")), expected)


def test_a_trained_model_is_read_like_a_new_one(tmp_path: Path) -> None:
    model = ALGORITHMS["PPO"]()
    before = read_encoder(saved(tmp_path, model)).state_dict()
    path = saved(tmp_path, model.learn(N_STEPS))
    encoder = read_encoder(path)
    assert not torch.equal(encoder.state_dict()["linear.0.weight"], before["linear.0.weight"])
    assert torch.equal(features(encoder), loaded_features(path, PPO, "features_extractor"))


def test_the_acting_extractor_comes_first() -> None:
    first = {
        name: extractor_names(ALGORITHMS[name]().policy.state_dict())[0] for name in ALGORITHMS
    }
    acting = {cls.__name__: name for cls, name in ACTING.items()}
    acting["CrossQ"] = "actor.features_extractor"
    assert first == {name: acting.get(name, "features_extractor") for name in ALGORITHMS}


def test_reading_leaves_the_random_stream_alone(tmp_path: Path) -> None:
    path = saved(tmp_path, ALGORITHMS["PPO"]())
    torch.rand(7)  # away from where building the model left the stream
    before = torch.get_rng_state()
    read_encoder(path)
    read_trusted_encoder(path)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_agent_that_observes_vectors_is_refused_without_advice_to_trust(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs=policy_kwargs())
    with pytest.raises(ValueError, match=r"observes images, got .* vectors \[4\]") as refusal:
        read_encoder(saved(tmp_path, model))
    assert not isinstance(refusal.value, NotRebuildableError)


def test_an_extractor_of_the_users_is_refused_by_name_and_read_when_trusted(tmp_path: Path) -> None:
    path = saved(tmp_path, ALGORITHMS["PPO"](policy_kwargs(OwnCNN)))
    with pytest.raises(NotRebuildableError, match=r"OwnCNN.*--trust-pickle"):
        read_encoder(path)
    encoder = read_trusted_encoder(path)
    assert torch.equal(features(encoder), loaded_features(path, PPO, "features_extractor"))


def _of_twice_the_features(self: Any, space: Any, features_dim: int = 512, **kwargs: Any) -> None:
    NatureCNN.__init__(self, space, 2 * features_dim, **kwargs)


def test_a_trusted_model_whose_class_is_gone_or_another_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module_of_mine.py"
    module.write_text(
        "from stable_baselines3.common.torch_layers import NatureCNN\n"
        "class Mine(NatureCNN):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("module_of_mine").Mine
    path = saved(tmp_path, ALGORITHMS["PPO"](policy_kwargs(mine)))
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["module_of_mine"].Mine, "__init__", _of_twice_the_features)
        with pytest.raises(ValueError, match=rf"classes of {path} to be unchanged .*size mismatch"):
            read_trusted_encoder(path)
    monkeypatch.delattr(sys.modules["module_of_mine"], "Mine")
    with (
        pytest.warns(UserWarning, match="Could not deserialize object policy_kwargs"),
        pytest.raises(ValueError, match=rf"rebuild policy_kwargs of {path}.*renamed or moved"),
    ):
        read_trusted_encoder(path)
    monkeypatch.setitem(sys.modules, "module_of_mine", None)
    with pytest.raises(ValueError, match=rf"the classes of {path}.*module_of_mine.*PYTHONPATH"):
        read_trusted_encoder(path)


def test_a_trusted_encoder_without_training_comes_from_the_seed(tmp_path: Path) -> None:
    path = saved(tmp_path, ALGORITHMS["PPO"](policy_kwargs(OwnCNN)))
    first, again, other = (
        read_trusted_encoder(path, untrained_seed=seed).state_dict() for seed in (5, 5, 6)
    )
    weight = "policy.features_extractor.linear.0.weight"
    assert torch.equal(first[weight], again[weight])
    assert not torch.equal(first[weight], other[weight])
    assert not torch.equal(first[weight], read_trusted_encoder(path).state_dict()[weight])


def _observing(high: float, dtype: Any) -> StampedEnv:
    env = StampedEnv()
    env.observation_space = spaces.Box(0, high, IMAGE_SHAPE, dtype)
    return env


def _small(env: Any, policy: Any = "CnnPolicy", **kwargs: Any) -> BaseAlgorithm:
    return PPO(policy, env, n_steps=32, batch_size=32, policy_kwargs=kwargs, device="cpu")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: _small(StampedEnv(), OwnPolicy), "policy class of module"),
        (lambda: _small(StampedEnv(), "MlpPolicy"), "has no weights"),
        (lambda: _small(StampedDictEnv(StampedEnv()), "MultiInputPolicy"), "observations Dict"),
        (
            lambda: _small(_observing(1.0, np.float32), normalize_images=False),
            r"Box of shape \[4, 36, 36\] and type float32",
        ),
        (
            lambda: _small(_observing(200, np.uint8), **policy_kwargs(normalized_image=True)),
            "bounds .*200",
        ),
    ],
)
def test_what_the_text_does_not_tell_is_refused_with_the_way_out(
    tmp_path: Path, build: Any, message: str
) -> None:
    path = saved(tmp_path, build())
    with pytest.raises(NotRebuildableError, match=rf"{path.name}.*{message}.*--trust-pickle"):
        read_encoder(path)


def test_what_makes_an_encoder_of_images_rebuilds_it() -> None:
    made, rebuilt = (
        inspect.signature(each).parameters.keys() for each in (ImageEncoder, PixelEncoder)
    )
    of_hosts, of_files = {"space"}, {"image_shape", "generator", "divide_by"}
    assert made - of_hosts == rebuilt - of_files, "Declare it in `EncoderForm`."


@pytest.mark.parametrize(
    "given",
    [
        "{'precision': <half>}",
        "{" * 9_000,
        "[1]",
        7,
        {"precision": "fp8"},
        {"activation": "gelu"},
        {"activation": ["relu"]},
        "{'feature_activation': <linear>}",
        "{'channels_last': f()}",
    ],
)
def test_arguments_that_cannot_be_read_are_refused(tmp_path: Path, given: Any) -> None:
    path = saved(tmp_path, ALGORITHMS["PPO"]())
    members = members_of(path.read_bytes())
    text = json.loads(members["data"])
    text["policy_kwargs"]["features_extractor_kwargs"] = given
    path.write_bytes(zip_file({**members, "data": json.dumps(text).encode()}))
    with pytest.raises(NotRebuildableError, match=r"InfoNCEExtractor with .*--trust-pickle"):
        read_encoder(path)


def test_an_isolated_encoder_is_refused_in_words(tmp_path: Path) -> None:
    path = saved(tmp_path, ALGORITHMS["PPO"](policy_kwargs(isolated=True)))
    with pytest.raises(NotRebuildableError, match=r"with isolated=True, .*--trust-pickle"):
        read_encoder(path)


def test_the_architecture_is_described_in_few_words(tmp_path: Path) -> None:
    path = saved(tmp_path, ALGORITHMS["PPO"](deepcopy(EXTRACTORS["bf16"])))
    assert describe(read_encoder(path)) == "nature 32 on 4x36x36, bf16"
