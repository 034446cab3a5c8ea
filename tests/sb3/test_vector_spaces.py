"""Which observations and actions there may be beside vectors of floats, and what is refused."""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from rl_infonce import InfoNCEExtractor
from rl_infonce.presets import PRESETS
from rl_infonce.sb3.auxiliary_loss import AuxiliaryLoss
from rl_infonce.sb3.batch_sampling import sample_batch
from tests.further import further
from tests.sb3.worlds import N_STEPS, PPO_SIZES, extractors_of, policy_kwargs

VECTOR = spaces.Box(-1.0, 1.0, (8,))
REPLAY_SIZES: dict[str, Any] = {"buffer_size": 200, "learning_starts": 40, "batch_size": 16}


class SampledEnv(gym.Env[Any, Any]):
    """Episodes of 12 steps whose observations are drawn from their space."""

    def __init__(self, space: spaces.Space[Any], constant: tuple[int, ...] = ()) -> None:
        self.observation_space = space
        self.observation_space.seed(0)
        self.action_space = spaces.Discrete(3)
        self.constant = list(constant)
        self.time = 0

    def observation(self) -> Any:
        drawn = self.observation_space.sample()
        if self.constant:
            drawn[self.constant] = 1
        return drawn

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observation(), 1.0, self.time == 12, False, {}


def train(env: gym.Env[Any, Any], algorithm: type[Any] = PPO, **settings: Any) -> Any:
    sizes = PPO_SIZES if algorithm is PPO else REPLAY_SIZES
    kwargs = policy_kwargs(**{"with_observation": True, **settings})
    model = algorithm(
        "MlpPolicy", DummyVecEnv([lambda: env]), policy_kwargs=kwargs, seed=0, **sizes
    )
    return model.learn(N_STEPS)


VECTORS: dict[str, tuple[spaces.Box, tuple[int, ...]]] = {
    "one dimension": (spaces.Box(-1.0, 1.0, (1,)), ()),
    "constant dimensions": (spaces.Box(-5.0, 5.0, (4,)), (1, 2)),
    "without bounds": (spaces.Box(-np.inf, np.inf, (3,)), ()),
    "bounds on one side": (spaces.Box(0.0, np.inf, (3,)), ()),
    "float64": (spaces.Box(-1e6, 1e6, (3,), np.float64), ()),
    "integers": (spaces.Box(-9, 9, (3,), np.int64), ()),
    "RAM": (spaces.Box(0, 255, (128,), np.uint8), ()),
    "constant": (spaces.Box(0.0, 5.0, (2,)), (0, 1)),
}


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("algorithm", [PPO, further(DQN)])
@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_every_kind_train(name: str, algorithm: type[Any], isolated: bool) -> None:
    model = train(SampledEnv(*VECTORS[name]), algorithm, isolated=isolated)
    for extractor in extractors_of(model):
        assert extractor.features_dim == 32 + VECTORS[name][0].shape[0]
        assert extractor.last_infonce["n_pairs"] == 16
        assert (extractor.last_infonce["loss"] > 0) == (name != "constant")
        assert all(np.isfinite(number) for number in extractor.last_infonce.values())
        assert all(tensor.isfinite().all() for tensor in extractor.state_dict().values())


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_nothing_can_be_told_of_no_dimension(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"at least one dimension.*\(0,.*Observe at least one number\.$"
    ):
        InfoNCEExtractor(spaces.Box(-1.0, 1.0, shape))


WAY_OUT = r"gymnasium\.wrappers\.FlattenObservation"
OTHERS: list[tuple[spaces.Space[Any], type[Exception]]] = [
    (spaces.Discrete(5), TypeError),
    (spaces.MultiDiscrete([3, 4]), TypeError),
    (spaces.MultiBinary(6), TypeError),
    (spaces.Tuple([spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,))]), TypeError),
    (spaces.Box(-1.0, 1.0, (3, 4)), ValueError),
    (spaces.Box(-1.0, 1.0, ()), ValueError),
]


@pytest.mark.parametrize(
    ("space", "error"), OTHERS, ids=[type(space).__name__ + str(space.shape) for space, _ in OTHERS]
)
def test_the_way_out_for_other_observations_trains(
    space: spaces.Space[Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=rf"`observation_space`.*{WAY_OUT}"):
        InfoNCEExtractor(space)
    model = train(gym.wrappers.FlattenObservation(SampledEnv(space)))
    assert np.isfinite(extractors_of(model)[0].last_infonce["loss"])


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Sequence(VECTOR)], ids=["Text", "Sequence"]
)
def test_observations_without_a_size_are_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(TypeError, match=r"`observation_space`.*Encode it into an array"):
        InfoNCEExtractor(space)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"preset": "cpc", "terms": ("local_local",)}, "terms"),
        ({"augmentation": "random_shift"}, "augmentation"),
        ({"encoder": "impala"}, "encoder"),
        ({"augment_observations": True}, "augment_observations"),
    ],
)
def test_what_needs_images_is_refused_by_name(settings: dict[str, Any], name: str) -> None:
    given = {"action_space": spaces.Discrete(2), **settings}
    words = rf"`{name}` to fit vectors, got [^=]*, which needs images. Leave it out.$"
    with pytest.raises(ValueError, match=words):
        InfoNCEExtractor(VECTOR, **given)


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("atc", "augmentation"),
        ("curl", "augmentation"),
        ("spatial_cpc", "terms"),
        ("positional_cpc", "terms"),
    ],
)
def test_a_preset_that_needs_images_is_refused_by_name(preset: str, name: str) -> None:
    words = rf"`{name}` to fit vectors, got .* of preset='{preset}'.*preset among cpc, action_cpc"
    with pytest.raises(ValueError, match=words):
        InfoNCEExtractor(VECTOR, preset=preset)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"preset": "action_cpc"}, r"`input_sparsity` .*, got 0.03 .*=0\.0\."),
        ({"isolated": True, "input_sparsity": 0.03}, r"`input_sparsity` .*, got 0.03, .*Leave it"),
        ({"isolated": True, "select_inputs": True}, r"`select_inputs` .*, got True, .*Leave it"),
    ],
)
def test_what_needs_vectors_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    given = {"action_space": spaces.Discrete(2), **settings}
    image = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    with pytest.raises(ValueError, match=words):
        InfoNCEExtractor(image, **given)
    way_out = {"input_sparsity": 0, "select_inputs": False}
    assert InfoNCEExtractor(image, **{**given, **way_out}).horizons


def test_what_one_kind_alone_takes_is_refused_by_the_other() -> None:
    of_images: dict[str, Any] = {
        "activation": "elu",
        "normalization": "layer",
        "feature_activation": "linear",
    }
    of_images |= {"encoder": "impala", "augmentation": "random_shift", "augment_observations": True}
    of_images |= {"channels_last": False, "terms": ("local_local",)}
    of_vectors: dict[str, Any] = {
        "input_sparsity": 0.1,
        "select_inputs": True,
        "with_observation": True,
    }
    image = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    for space, unfit in ((VECTOR, of_images), (image, of_vectors)):
        for name, value in unfit.items():
            given: dict[str, Any] = {"preset": "cpc", "isolated": True, name: value}
            with pytest.raises(ValueError, match=f"`{name}`"):
                InfoNCEExtractor(space, action_space=spaces.Discrete(2), **given)


def test_moved_images_that_no_loss_of_rl_sees_are_refused() -> None:
    image = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    with pytest.raises(ValueError, match="`augment_observations` with an encoder that RL trains"):
        InfoNCEExtractor(image, augment_observations=True, isolated=True)
    assert InfoNCEExtractor(image, augment_observations=True).horizons


@pytest.mark.parametrize(
    "actions",
    [
        spaces.Dict({"left": spaces.Discrete(2)}),
        spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
        spaces.Text(5),
    ],
    ids=lambda space: type(space).__name__,
)
def test_actions_that_are_no_array_are_refused(actions: spaces.Space[Any]) -> None:
    with pytest.raises(TypeError, match=r"`action_space`.*Box, Discrete.*Flatten.*False"):
        InfoNCEExtractor(VECTOR, action_space=actions)
    assert InfoNCEExtractor(VECTOR, action_space=actions, action_conditioning=False).horizons


def test_the_presets_that_the_message_names_fit_vectors() -> None:
    with pytest.raises(ValueError, match="among ") as caught:
        InfoNCEExtractor(VECTOR, preset="atc")
    named = str(caught.value).split("among ")[1].rstrip(".").split(", ")
    assert {"cpc", "action_cpc"} <= set(named) < set(PRESETS)
    for preset in named:
        extractor = InfoNCEExtractor(VECTOR, preset=preset, action_space=spaces.Discrete(2))
        assert extractor.horizons


# -- actions -------------------------------------------------------------------------------------


class EchoEnv(gym.Env[npt.NDArray[np.float32], Any]):
    """Observes how often it was stepped, and the action that it got last."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space
        self.n_actions = spaces.flatdim(action_space)
        self.observation_space = spaces.Box(-np.inf, np.inf, (1 + self.n_actions,), np.float32)
        self.time, self.n_steps = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return self.observation(np.zeros(self.n_actions)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time, self.n_steps = self.time + 1, self.n_steps + 1
        return (
            self.observation(spaces.flatten(self.action_space, action)),
            float(self.time % 3),
            self.time == 12,
            False,
            {},
        )

    def observation(self, action: Any) -> npt.NDArray[np.float32]:
        return np.array([self.n_steps, *action], dtype=np.float32)


ASYMMETRIC = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32))
ACTIONS: list[tuple[type[Any], spaces.Space[Any]]] = [
    (PPO, ASYMMETRIC),
    (SAC, ASYMMETRIC),
    (PPO, spaces.Box(-1.0, 1.0, (2, 3))),
    (PPO, spaces.Box(1.0, 1.0, (2,))),
    (PPO, spaces.Discrete(4)),
    (DQN, spaces.Discrete(4)),
    (PPO, spaces.MultiDiscrete([2, 4])),
    (PPO, spaces.MultiBinary(3)),
]


def scaled(actions: npt.NDArray[Any], space: spaces.Space[Any]) -> npt.NDArray[Any]:
    """Return actions, those of a Box in [-1, 1]."""
    if not isinstance(space, spaces.Box):
        return actions
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    in_unit: npt.NDArray[Any] = 2 * (actions - low) / np.maximum(high - low, 1e-30) - 1
    return in_unit


def encoded_actions(model: BaseAlgorithm) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return actions [B, L, A] as the loss sees them, and what the next observations tell."""
    (extractor, *_) = extractors_of(model)
    experience = extractor.experience()
    assert experience is not None
    raw = sample_batch(experience, extractor._plan, np.random.default_rng(0))
    assert raw is not None
    auxiliary: AuxiliaryLoss = extractor._auxiliary_loss()
    actions = auxiliary.encode(raw).actions
    assert actions is not None
    told = np.moveaxis(raw.futures[..., 1:], 0, 1)  # horizons 1, 2, 3: after each of the actions
    return actions.numpy(), np.array(told, dtype=np.float64)


@pytest.mark.parametrize(
    ("algorithm", "space"), ACTIONS, ids=[f"{a.__name__}-{s}" for a, s in ACTIONS]
)
def test_the_loss_sees_the_actions_that_the_environment_got(
    algorithm: type[Any], space: spaces.Space[Any]
) -> None:
    model = train(EchoEnv(space), algorithm, horizons=(1, 2, 3), preset="action_cpc")
    assert 0 < extractors_of(model)[0].last_infonce["loss"] < 10
    found, told = encoded_actions(model)
    assert found.shape == (16, 3, spaces.flatdim(space))
    expected = scaled(told, space)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert space is not ASYMMETRIC or (found.min() < -0.9 and found.max() > 0.9)


def test_a_squashed_policy_stores_its_actions_scaled() -> None:
    """With generalised state-dependent exploration, SB3's PPO can end in a tanh."""
    kwargs = policy_kwargs(horizons=(1, 2, 3)) | {"squash_output": True}
    env = DummyVecEnv([lambda: EchoEnv(ASYMMETRIC)])
    model = PPO("MlpPolicy", env, policy_kwargs=kwargs, use_sde=True, seed=0, **PPO_SIZES)
    model.learn(N_STEPS)
    found, told = encoded_actions(model)
    np.testing.assert_allclose(found, scaled(told, ASYMMETRIC), atol=1e-5)


def test_bf16_runs_the_network_in_bfloat16_and_hands_on_floats() -> None:
    extractor = InfoNCEExtractor(VECTOR, preset="cpc", precision="bf16").eval()
    seen: list[torch.dtype] = []
    first = extractor.get_submodule("mlp.0")
    first.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    assert extractor(torch.rand(4, 8)).dtype == torch.float32
    assert seen == [torch.bfloat16]


def test_the_policy_receives_features_alone_or_behind_the_observation() -> None:
    given: dict[str, Any] = {"action_space": spaces.Discrete(2), "features_dim": 5}
    vectors = torch.randn(4, *VECTOR.shape)
    alone = InfoNCEExtractor(VECTOR, with_observation=False, **given).eval()
    beside = InfoNCEExtractor(VECTOR, **given).eval()
    assert (alone.features_dim, beside.features_dim) == (5, VECTOR.shape[0] + 5)
    assert torch.equal(alone(vectors), alone.encoder.encode(vectors).features)
    both = torch.cat([vectors, beside.encoder.encode(vectors).features], dim=1)
    assert torch.equal(beside(vectors), both)
