"""Dictionaries of observations: every image learns its own future, the rest joins as in SB3."""

import copy
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import CombinedExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rl_infonce import InfoNCECombinedExtractor, InfoNCEExtractor
from rl_infonce.sb3.binding import place_of
from rl_infonce.sb3.callbacks import trained_extractors
from tests.further import further
from tests.sb3.fakes import (
    IMAGE_SHAPE,
    VECTOR_SHAPE,
    StampedDictEnv,
    StampedEnv,
    StampedVectorEnv,
    decode,
)
from tests.sb3.test_experience import StampedGoalEnv
from tests.sb3.worlds import PPO_SIZES, assert_same_weights, extractors_of, record_logger

SPACE = spaces.Dict(
    image=spaces.Box(0, 255, IMAGE_SHAPE, np.uint8),
    speed=spaces.Box(-1.0, 1.0, (2,), np.float32),
    gear=spaces.Discrete(5),
)


class TwoCameras(StampedDictEnv):
    """The stamped image, and the same upside down, beside a vector."""

    BACK = "back"

    def __init__(self, env: StampedEnv) -> None:
        super().__init__(env)
        image = env.observation_space
        speed = self.observation_space["speed"]  # type: ignore[index]
        self.observation_space = spaces.Dict({"front": image, self.BACK: image, "speed": speed})

    def observation(self, observation: npt.NDArray[np.uint8]) -> dict[str, Any]:
        speed = np.zeros(2, dtype=np.float32)
        return {"front": observation, self.BACK: observation[:, ::-1].copy(), "speed": speed}


class CameraAndTarget(TwoCameras):
    """Two images, one with a name like those of target networks."""

    BACK = "camera_target"


def kwargs_of(
    extractor: type[CombinedExtractor] = InfoNCECombinedExtractor, **settings: Any
) -> dict[str, Any]:
    given = {"cnn_output_dim": 32, **settings}
    if extractor is InfoNCECombinedExtractor:
        given.setdefault("n_pairs", 16)
    return {
        "features_extractor_class": extractor,
        "features_extractor_kwargs": given,
        "net_arch": [],
    }


def build(
    name: str,
    wrapper: type[StampedDictEnv] = StampedDictEnv,
    kwargs: Any = None,
    kind: type[StampedEnv] = StampedEnv,
) -> BaseAlgorithm:
    def make(number: int) -> StampedDictEnv:
        return wrapper(kind(number, lengths=(9, 15), continuous=name == "SAC"))

    env = DummyVecEnv([partial(make, number) for number in range(2)])
    settings: dict[str, Any] = {"policy_kwargs": kwargs or kwargs_of(), "seed": 0}
    if name == "PPO":
        return PPO("MultiInputPolicy", env, **settings, **PPO_SIZES)
    settings |= {"buffer_size": 200, "learning_starts": 40, "batch_size": 16}
    if wrapper is StampedGoalEnv:
        settings["replay_buffer_class"] = HerReplayBuffer
    algorithm = SAC if name == "SAC" else DQN
    return algorithm("MultiInputPolicy", env, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrapper"),
    [*((name, StampedDictEnv) for name in ("PPO", "DQN", "SAC")), ("DQN", StampedGoalEnv)],
)
def test_images_in_dictionaries_have_a_loss(name: str, wrapper: type[StampedDictEnv]) -> None:
    model = build(name, wrapper)
    model.learn(96)
    for extractor in extractors_of(model):
        assert extractor.last_infonce["loss"] > 0
        assert extractor.last_infonce["n_pairs"] == 16


def test_pairs_are_of_the_image_of_the_key() -> None:
    model = build("PPO", TwoCameras)
    numbers = record_logger(model)
    model.learn(128)
    extractors: Any = model.policy.features_extractor.extractors
    rows, envs = np.arange(20), np.arange(20) % 2
    for key, up in (("front", 1), ("back", -1)):
        images = extractors[key].experience().observations(rows, envs)
        assert decode(images[..., ::up, :]).env.tolist() == envs.tolist()
        assert extractors[key].last_infonce["loss"] > 0
    tags = {tag for tag in numbers if tag.endswith("loss") and "infonce" in tag}
    assert tags == {"infonce/loss", "infonce/front/loss", "infonce/back/loss"}


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_an_image_may_be_called_like_a_target_network(name: str) -> None:
    model = build(name, CameraAndTarget)
    found = trained_extractors(model.policy)
    assert [extractor.observation_key for extractor in found] == ["camera_target", "front"]
    places = [place_of(extractor, model.policy) for extractor in found]
    assert [place.split(".")[-1] for place in places] == ["camera_target", "front"]


def test_the_curves_of_two_networks_name_both() -> None:
    kwargs = {**kwargs_of(), "share_features_extractor": False}
    model = build("PPO", kwargs=kwargs)
    found = trained_extractors(model.policy)
    assert {place_of(extractor, model.policy) for extractor in found} == {"pi.image", "vf.image"}


def test_the_curves_of_isolated_encoders_name_the_entry_alone() -> None:
    shared = build("PPO", kwargs={**kwargs_of(isolated=True), "share_features_extractor": False})
    assert {place_of(each, shared.policy) for each in trained_extractors(shared.policy)} == {""}
    two = build("PPO", TwoCameras, kwargs=kwargs_of(isolated=True))
    places = {place_of(each, two.policy) for each in trained_extractors(two.policy)}
    assert places == {"front", "back"}


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_coefficient_0_is_the_plain_network(name: str) -> None:
    plain = build(name, kwargs=kwargs_of(CombinedExtractor))
    plain.learn(96)
    settings = kwargs_of(infonce_coef=0.0, channels_last=False)
    model = build(name, kwargs=settings)
    model.learn(96)
    assert_same_weights(model.policy, plain.policy)


def test_features_are_those_of_sb3_in_its_order() -> None:
    torch.manual_seed(0)
    ours = InfoNCECombinedExtractor(SPACE, 32, channels_last=False)
    theirs = CombinedExtractor(SPACE, 32)
    state = {n: t for n, t in ours.state_dict().items() if ".infonce." not in n}
    theirs.load_state_dict(state)
    ours.eval()
    observations = {
        "image": torch.rand(3, *IMAGE_SHAPE),
        "speed": torch.rand(3, 2),
        "gear": torch.eye(5)[:3],
    }
    assert ours.features_dim == theirs.features_dim == 32 + 2 + 5
    assert torch.equal(ours(observations), theirs(observations))


def test_normalized_images_are_read_as_the_policy_sees_them() -> None:
    env = VecNormalize(DummyVecEnv([lambda: StampedDictEnv(StampedEnv(lengths=(9, 15)))]))
    kwargs = {**kwargs_of(), "normalize_images": False}
    model = PPO("MultiInputPolicy", env, policy_kwargs=kwargs, **PPO_SIZES).learn(32)
    assert extractors_of(model)[0].last_infonce["loss"] > 0


def test_copies_and_files_go_on_reading_their_image(tmp_path: Path) -> None:
    model = build("PPO")
    model.learn(32)
    model.save(tmp_path / "model.zip")
    again = PPO.load(tmp_path / "model.zip", env=model.get_env())
    assert_same_weights(again.policy, model.policy)
    again.learn(32)
    assert extractors_of(again)[0].last_infonce["loss"] > 0
    assert copy.deepcopy(extractors_of(model)[0])._session.reader.observation_key == "image"


def test_what_is_no_dictionary_with_an_image_is_named() -> None:
    with pytest.raises(TypeError, match=r"to be a Dict, got Box.*needs InfoNCEExtractor"):
        InfoNCECombinedExtractor(SPACE["image"])  # type: ignore[arg-type]
    neither = spaces.Dict(gear=SPACE["gear"], grid=spaces.Box(-1.0, 1.0, (2, 3)))
    with pytest.raises(ValueError, match=r"or a vector .*'Box float32 \(2, 3\)'.*Combined"):
        InfoNCECombinedExtractor(neither)
    with pytest.raises(ValueError, match="`cnn_output_dim` to be a finite number >= 1, got 0"):
        InfoNCECombinedExtractor(SPACE, cnn_output_dim=0)
    with pytest.raises(TypeError, match="`cnn_output_dim`, features per entry, got `features_dim`"):
        InfoNCECombinedExtractor(SPACE, features_dim=64)
    with pytest.raises(TypeError, match=r"no `observation_key`, .* got 'camera'"):
        InfoNCECombinedExtractor(SPACE, observation_key="camera")
    with pytest.raises(TypeError, match=r"InfoNCECombinedExtractor, which encodes its images"):
        InfoNCEExtractor(SPACE)


# -- vectors -------------------------------------------------------------------------------------


class TwoSensors(StampedDictEnv):
    """The stamped vector, and the same with its numbers doubled, beside a category."""

    def __init__(self, env: StampedEnv) -> None:
        super().__init__(env)
        vector = env.observation_space
        self.observation_space = spaces.Dict(joints=vector, twice=vector, gear=spaces.Discrete(4))

    def observation(self, observation: npt.NDArray[Any]) -> dict[str, Any]:
        return {"joints": observation, "twice": 2 * observation, "gear": 3}


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [further(False), True])
@pytest.mark.parametrize(
    ("name", "wrapper"),
    [
        ("PPO", TwoSensors),
        further("DQN", TwoSensors),
        further("SAC", TwoSensors),
        ("SAC", StampedGoalEnv),
    ],
)
def test_vectors_in_dictionaries_have_a_loss_each(
    name: str, wrapper: type[StampedDictEnv], isolated: bool
) -> None:
    model = build(name, wrapper, kwargs_of(isolated=isolated), kind=StampedVectorEnv)
    model.learn(128)
    found = extractors_of(model)
    keys = ("joints", "twice") if wrapper is TwoSensors else ("observation",)
    assert {extractor.observation_key for extractor in found} == set(keys)
    for extractor in found:
        is_leader = not isolated or extractor is next(
            each for each in found if each.observation_key == extractor.observation_key
        )
        assert ("loss" in extractor.last_infonce) == is_leader
        if is_leader:
            assert extractor.last_infonce["loss"] > 0
            assert extractor.last_infonce["n_pairs"] == 16


def test_pairs_are_of_the_vector_of_the_key() -> None:
    model = build("PPO", TwoSensors, kwargs_of(isolated=True), kind=StampedVectorEnv)
    numbers = record_logger(model)
    model.learn(192)
    extractors: Any = model.policy.features_extractor.extractors
    rows, envs = np.arange(20), np.arange(20) % 2
    for key, factor in (("joints", 1), ("twice", 2)):
        vectors = extractors[key].experience().observations(rows, envs)
        assert decode(vectors).env.tolist() == (factor * envs).tolist()
    tags = {tag for tag in numbers if tag.endswith("/loss") and "infonce" in tag}
    assert tags == {"infonce/loss", "infonce/joints/loss", "infonce/twice/loss"}


def test_features_of_vectors_stand_behind_them_in_the_order_of_sb3() -> None:
    space = spaces.Dict(joints=spaces.Box(-1.0, 1.0, VECTOR_SHAPE), gear=spaces.Discrete(4))
    extractor = InfoNCECombinedExtractor(space, preset="cpc").eval()
    observations = {"joints": torch.rand(3, *VECTOR_SHAPE), "gear": torch.eye(4)[:3]}
    received = extractor(observations)
    n_own = extractor.features_dim - 4 - VECTOR_SHAPE[0]
    assert n_own == InfoNCEExtractor(space["joints"], preset="cpc").features_dim - VECTOR_SHAPE[0]
    assert received.shape == (3, extractor.features_dim)
    assert torch.equal(received[:, : VECTOR_SHAPE[0]], observations["joints"])
    assert torch.equal(received[:, -4:], observations["gear"])


def test_keys_name_what_is_encoded() -> None:
    goals: Any = build("SAC", StampedGoalEnv, kwargs_of(keys=["desired_goal"]), StampedVectorEnv)
    assert {each.observation_key for each in extractors_of(goals)} == {"desired_goal"}
    camera: Any = build("PPO", kwargs=kwargs_of(keys="speed", isolated=False))
    camera.learn(64)
    (vector,) = extractors_of(camera)
    assert vector.observation_key == "speed"
    image = camera.policy.features_extractor.extractors["image"]
    assert type(image).__name__ == "NatureCNN"
    assert image.features_dim == 32


def test_images_alone_are_encoded_where_there_are_both() -> None:
    extractor = InfoNCECombinedExtractor(SPACE, preset="cpc")
    assert isinstance(extractor.extractors["image"], InfoNCEExtractor)
    assert isinstance(extractor.extractors["speed"], torch.nn.Flatten)
    assert extractor.features_dim == 256 + 2 + 5
    both = InfoNCECombinedExtractor(SPACE, 32, preset="cpc", keys=("image", "speed"))
    assert both.features_dim == 32 + (32 + 2) + 5


def test_entries_have_settings_of_their_own_before_those_of_all() -> None:
    keys: dict[str, Any] = {
        "image": {"encoder": "impala", "activation": "elu", "augmentation": "random_shift"},
        "speed": {"input_sparsity": 0.01, "with_observation": False, "n_pairs": 16},
    }
    given: dict[str, Any] = {"preset": "cpc", "isolated": True, "n_pairs": 32}
    both: Any = InfoNCECombinedExtractor(SPACE, keys=keys, **given).extractors
    image, speed = both["image"].settings, both["speed"].settings
    assert (image.activation, image.augmentation, image.n_pairs) == ("elu", "random_shift", 32)
    assert (speed.activation, speed.augmentation, speed.n_pairs) == ("relu", "none", 16)
    assert (image.input_sparsity, speed.input_sparsity) == (0, 0.01)
    assert image.isolated
    assert speed.isolated
    assert isinstance(both["gear"], torch.nn.Flatten)


def test_entries_may_have_presets_and_encoders_of_their_own() -> None:
    keys: dict[str, Any] = {"image": {"preset": "atc"}, "speed": {"encoder": seven_outputs}}
    actions = spaces.Discrete(2)
    found: Any = InfoNCECombinedExtractor(SPACE, 32, keys=keys, action_space=actions)
    image, speed = (found.extractors[key] for key in keys)
    assert image.settings.critic == "bilinear"
    assert not image.settings.isolated
    assert speed.settings.isolated
    assert (image.features_dim, speed.features_dim) == (32, 2 + 7)


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        ({"augmentation": "random_shift"}, "For entry 'speed': Expected `augmentation` to fit vec"),
        ({"input_sparsity": 0.1}, "For entry 'image': Expected `input_sparsity` with isolated"),
        ({"pairs_from": "minibatch"}, "For entry 'speed': Expected `pairs_from` "),
        ({"encoder": "nature"}, "For entry 'speed': Expected `encoder` to fit vectors"),
        ({"horizon": 4}, "For entry 'image': InfoNCEExtractor has no argument `horizon`"),
    ],
)
def test_settings_of_all_that_one_entry_refuses_are_refused(
    shared: dict[str, Any], message: str
) -> None:
    way_out = r".*go into `keys`, as in keys=\{'(image|speed)': \{"
    with pytest.raises((TypeError, ValueError), match=f"{message}{way_out}"):
        InfoNCECombinedExtractor(
            SPACE, keys=("image", "speed"), action_space=spaces.Discrete(2), **shared
        )


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("atc", r"`keys` .* as in \{'image': \{'preset': 'cpc'\}\}, got 'atc' for 'image'"),
        ({"features_dim": 64}, "`cnn_output_dim`, .* got `features_dim` for 'image'"),
        ({"observation_key": "speed"}, "no `observation_key`, .* got 'speed' for 'image'"),
    ],
)
def test_what_an_entry_cannot_have_is_named(own: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        InfoNCECombinedExtractor(SPACE, keys={"image": own, "speed": {}})


def test_a_file_keeps_the_settings_of_each_entry(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"image": {"infonce_coef": 0.0, "preset": "atc"}, "speed": {}}
    model: Any = build("PPO", kwargs=kwargs_of(keys=keys)).learn(96)
    image, speed = (model.policy.features_extractor.extractors[key] for key in keys)
    assert "loss" not in image.last_infonce
    assert "loss" in speed.last_infonce
    model.save(tmp_path / "model.zip")
    again: Any = PPO.load(tmp_path / "model.zip", env=model.get_env())
    assert_same_weights(again.policy, model.policy)
    loaded = again.policy.features_extractor.extractors
    assert [loaded[key].settings for key in keys] == [image.settings, speed.settings]


def seven_outputs(_: spaces.Space[Any]) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(7))


def test_the_size_of_an_encoder_of_ones_own_is_its_own() -> None:
    with pytest.raises(ValueError, match=r"`cnn_output_dim` .* not encoded, got 64 with an enc"):
        InfoNCECombinedExtractor(SPACE, 64, encoder=seven_outputs, preset="cpc")
    two = spaces.Dict(front=SPACE["image"], back=SPACE["image"])
    found = InfoNCECombinedExtractor(two, 64, keys="front", encoder=seven_outputs, preset="cpc")
    assert found.features_dim == 7 + 64


def test_an_entry_without_a_number_is_named() -> None:
    space = spaces.Dict(speed=spaces.Box(-1.0, 1.0, (3,)), nothing=spaces.Box(-1.0, 1.0, (0,)))
    with pytest.raises(ValueError, match=r"at least one number, got \['nothing'\].*wrapper"):
        InfoNCECombinedExtractor(space, preset="cpc")


@pytest.mark.parametrize("keys", [["gear"], ["picture"], [], ["image", "picture"]])
def test_keys_of_nothing_to_encode_are_named(keys: list[str]) -> None:
    unfit = re.escape(str([key for key in keys if key != "image"]))
    with pytest.raises(ValueError, match=rf"`keys`.*\['image', 'speed'\], got {unfit}"):
        InfoNCECombinedExtractor(SPACE, keys=keys)
