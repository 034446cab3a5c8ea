"""Every mistake names the argument, what was expected and what came; nothing is lost."""

import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.atari_wrappers import AtariWrapper, MaxAndSkipEnv
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

from rl_infonce import InfoNCECallback, InfoNCEExtractor, make_atari_vec_env
from rl_infonce.sb3.spaces import resolve_horizons
from rl_infonce.sb3.update_counts import MAX_NONFINITE
from rl_infonce.settings import InfoNCESettings, declared
from tests.sb3.fakes import (
    IMAGE_SHAPE,
    StampedDictEnv,
    StampedEnv,
    StampedVectorEnv,
    stamped_vec_env,
)
from tests.sb3.test_bit_identity import ChannelsLastCNN
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    PPO_SIZES,
    assert_same_weights,
    extractors_of,
    policy_kwargs,
    record_logger,
)

IMAGE = spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        (spaces.Dict(image=IMAGE), TypeError, r"`observation_space`.*one image.*Dict.*image"),
        (spaces.Discrete(4), TypeError, r"`observation_space`.*Box.*Discrete"),
        (spaces.Box(0, 1, (4, 84, 84)), ValueError, r"`observation_space`.*uint8.*float32"),
        (
            spaces.Box(0, 255, (84, 84, 4), np.uint8),
            ValueError,
            r"`observation_space`.*channels-first.*\(84, 84, 4\)",
        ),
        (
            spaces.Box(0, 255, (4, 30, 40), np.uint8),
            ValueError,
            r"at least 36x36.*30x40.*encoder='impala', which accepts them",
        ),
        (spaces.Box(0, 255, (4, 6, 6), np.uint8), ValueError, r"6x6. Resize the observations\.$"),
        (spaces.Box(0, 255, (84, 84), np.uint8), ValueError, "FrameStackObservation.*images of 4"),
        (spaces.Box(0, 1, (2, 3, 4, 5)), ValueError, r"\(2, 3, 4, 5\). gymnasium.*Flatten"),
    ],
)
def test_unfit_observation_spaces(
    space: spaces.Space[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        InfoNCEExtractor(space)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"infonce_coef": -0.1}, ValueError, r"`infonce_coef`.*-0\.1"),
        ({"infonce_coef": float("nan")}, ValueError, r"`infonce_coef`.*nan"),
        ({"infonce_coef": "much"}, TypeError, r"`infonce_coef`.*much"),
        ({"n_pairs": True}, TypeError, r"`n_pairs`.*True"),
        ({"terms": ("global", "global")}, ValueError, r"`terms`.*distinct.*'global', 'global'"),
        ({"temperature": 0.0}, ValueError, r"`temperature`.*0"),
        ({"temperature": -1.0}, ValueError, r"`temperature`.*-1"),
        ({"horizons": ()}, ValueError, r"`horizons`.*none"),
        ({"horizons": (-4,)}, ValueError, r"`horizons`.*-4"),
        ({"horizons": (0,)}, ValueError, r"`horizons`.*0"),
        ({"horizons": (4, 4)}, ValueError, r"`horizons`.*duplicates.*\[4, 4\]"),
        ({"horizons": (4.5,)}, TypeError, r"`horizons`.*4\.5"),
        ({"horizons": (4, True)}, TypeError, r"`horizons`.*True"),
        ({"horizons": "45"}, TypeError, r"`horizons`.*45"),
        ({"horizons": (-1,), "preset": "curl"}, ValueError, r"`horizons` .* least 0, got -1"),
        ({"n_pairs": 1}, ValueError, r"`n_pairs`.*1"),
        ({"n_pairs": 8.0}, TypeError, r"`n_pairs`.*8\.0"),
        ({"preset": "cpd"}, ValueError, r"`preset`.*cpd"),
        ({"preset": "spatial_cp"}, ValueError, "Did you mean 'spatial_cpc'"),
        ({"critic": "cosin"}, ValueError, r"`critic`.*cosin"),
        ({"encoder": "resnet"}, ValueError, r"`encoder`.*resnet"),
        ({"context": "lstm"}, ValueError, r"`context`.*lstm"),
        ({"context_length": 0}, ValueError, r"`context_length`.*0"),
        ({"augmentation": "flip"}, ValueError, r"`augmentation`.*flip"),
        ({"precision": "fp16"}, ValueError, r"`precision`.*fp16"),
        ({"activation": "gelu"}, ValueError, r"`activation`.*gelu"),
        ({"normalization": "batch"}, ValueError, r"`normalization`.*batch"),
        (
            {"features_dim": 15, "activation": "crelu"},
            ValueError,
            r"`features_dim` to be a multiple of 2.*15",
        ),
        ({"terms": [["global"]]}, TypeError, r"`terms` to be a list .*got \(\['global'\],\)"),
        ({"terms": ()}, ValueError, r"`terms`.*\(\)"),
        ({"terms": ("global", "globl")}, ValueError, r"`terms`.*globl"),
        ({"target_encoder_tau": 0.0}, ValueError, r"`target_encoder_tau`.*0"),
        ({"target_encoder_tau": 1.5}, ValueError, r"`target_encoder_tau`.*1\.5"),
        ({"min_gap": -1}, ValueError, r"`min_gap`.*-1"),
        ({"infonce_interval": 0}, ValueError, r"`infonce_interval`.*0"),
        ({"max_grad_ratio": 0.0}, ValueError, r"`max_grad_ratio`.*0"),
        ({"features_dim": 0}, ValueError, r"`features_dim`.*0"),
        ({"action_conditioning": True}, ValueError, r"`action_space`.*None"),
        ({"action_conditioning": True, "action_space": 3}, TypeError, "`action_space`.*space.*3"),
        ({"seed": -1}, ValueError, r"`seed`.*>= 0.*-1"),
        ({"seed": "zero"}, TypeError, r"`seed`.*zero"),
        ({"encoder": 3}, TypeError, r"`encoder`.*nature.*3"),
        ({"channels_last": "no"}, TypeError, r"`channels_last`.*True or False.*no"),
        ({"auto_bind": "no"}, TypeError, r"`auto_bind`.*True or False.*no"),
        (
            {"context": "gru", "terms": ("local_local",)},
            ValueError,
            r"`context`='gru' with a term that predicts.*Leave it out",
        ),
        ({"critic": "mlp", "temperature": 0.2}, ValueError, r"`temperature`.*'cosine'.*'mlp'"),
        ({"preset": "spatial_cpc", "temperature": 0.2}, ValueError, "`temperature.*'bilinear'"),
        ({"context_length": 4}, ValueError, r"`context_length` with context='gru'.*'none'"),
        ({"positives": "past"}, ValueError, r"positives.*'future', 'shuffled'"),
        ({"augment_observations": 1}, TypeError, "augment_observations"),
        ({"action_conditioning": 1}, TypeError, r"`action_conditioning`.*True or False.*1"),
        ({"with_observation": True}, ValueError, r"`with_observation` with vectors alone.*True"),
        ({"vectors": True}, TypeError, "InfoNCEExtractor has no argument `vectors`"),
    ],
)
def test_unfit_settings(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        InfoNCEExtractor(IMAGE, **settings)


def test_numpy_numbers_are_numbers() -> None:
    eight, tenth = np.int64(8), np.float64(0.1)
    extractor = InfoNCEExtractor(
        IMAGE, seed=eight, n_pairs=eight, horizons=(eight,), temperature=tenth
    )
    assert extractor.settings.n_pairs == 8


def test_any_sequence_of_numbers_will_do() -> None:
    small = np.array([7, 5, 6, 4], dtype=np.uint8)  # whose differences would wrap around
    given: tuple[Any, ...] = (range(4, 8), small, [4, 5, 6, 7])
    for horizons in given:
        found = InfoNCEExtractor(IMAGE, horizons=horizons).horizons
        assert found == (4, 5, 6, 7)
        assert {*map(type, found)} == {int}


def test_none_stands_for_the_preset_where_the_docstring_says_so() -> None:
    of_loss = declared(InfoNCESettings)
    first, *_, last = of_loss
    assert f"from `{first}` to `{last}`, that" in " ".join((InfoNCEExtractor.__doc__ or "").split())
    build: Any = InfoNCEExtractor
    given = build(IMAGE, preset="atc", **dict.fromkeys(of_loss))
    assert given.settings == build(IMAGE, preset="atc").settings
    for name in ("channels_last", "auto_bind", "normalized_image"):
        with pytest.raises(TypeError, match=f"`{name}` to be True or False, got None"):
            build(IMAGE, **{name: None})


def test_arguments_that_there_are_not_are_named() -> None:
    build: Any = InfoNCEExtractor
    with pytest.raises(TypeError, match=r"has no argument `horizon`. Did you mean `horizons`"):
        build(IMAGE, horizon=4)
    with pytest.raises(TypeError, match=r"has no argument `xyzzy`. help\(InfoNCEExtractor\)"):
        build(IMAGE, xyzzy=4)
    with pytest.raises(TypeError, match="from 2 to 3 positional arguments but 4 were given"):
        build(IMAGE, 512, "cpc")
    with pytest.raises(ValueError, match=r"`preset` to be one of .*got \['cpc'\]"):
        build(IMAGE, preset=["cpc"])


def test_a_dict_environment_is_refused_by_name() -> None:
    env = DummyVecEnv([lambda: StampedDictEnv(StampedEnv())])
    with pytest.raises(TypeError, match=r"`observation_space`.*Dict.*image.*speed"):
        PPO("MultiInputPolicy", env, policy_kwargs=policy_kwargs())


def test_the_way_out_for_a_dict_environment_trains() -> None:
    inner: Any = StampedDictEnv(StampedEnv(lengths=(9, 15)))
    env: Any = gym.wrappers.TransformObservation(
        inner, lambda o: o["image"], inner.observation_space["image"]
    )
    model = PPO("CnnPolicy", env, policy_kwargs=policy_kwargs(), **PPO_SIZES).learn(32)
    assert extractors_of(model)[0].last_infonce["loss"] > 0


class OwnCombination(BaseFeaturesExtractor):
    """An InfoNCEExtractor on one entry of a dictionary."""

    def __init__(self, observation_space: spaces.Dict, observation_key: str | None) -> None:
        super().__init__(observation_space, 32)
        self.image = InfoNCEExtractor(
            observation_space["image"], 32, observation_key=observation_key
        )

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        features: torch.Tensor = self.image(observations["image"])
        return features


def test_a_buffer_of_dictionaries_names_a_way_out_that_exists() -> None:
    def model(observation_key: str | None) -> PPO:
        env = DummyVecEnv([lambda: StampedDictEnv(StampedEnv(lengths=(9, 15)))])
        kwargs = {
            "features_extractor_class": OwnCombination,
            "features_extractor_kwargs": {"observation_key": observation_key},
        }
        return PPO("MultiInputPolicy", env, policy_kwargs=kwargs, **PPO_SIZES)

    message = (
        r"loss is off: DictRolloutBuffer.*'speed'\], got `observation_key` None; pass one of them"
    )
    with pytest.warns(UserWarning, match=message):
        model(None).learn(32)
    with pytest.warns(UserWarning, match="got `observation_key` 'picture'"):
        model("picture").learn(32)
    trained = model("image").learn(32)
    assert extractors_of(trained)[0].last_infonce["loss"] > 0


def test_horizons_that_share_frames_warn_and_say_why() -> None:
    with pytest.warns(UserWarning, match=r"horizons=\[1, 3\].*stack of 4.*share 3 frames"):
        InfoNCEExtractor(IMAGE, horizons=(1, 3, 8))


@pytest.mark.parametrize(
    ("channels", "horizon"), [(1, 4), (2, 4), (3, 4), (4, 4), (5, 5), (6, 6), (8, 8), (12, 12)]
)
def test_the_default_horizon_is_the_frame_stack_but_at_least_4(channels: int, horizon: int) -> None:
    """Six channels may be six grey frames."""
    assert resolve_horizons(None, (channels, 84, 84)) == (horizon,)


def test_horizons_that_may_share_frames_warn_and_name_the_other_case() -> None:
    with pytest.warns(UserWarning, match=r"stack of 12.*share 8 frames.*4 frames of RGB, 4 will"):
        resolve_horizons((4,), (12, 84, 84))
    message = r"share 1 frames.*compare infonce/accuracy_k4 with infonce/floor_pixels_k4\.$"
    with pytest.warns(UserWarning, match=message):
        resolve_horizons((4,), (5, 84, 84))
    assert resolve_horizons((1,), (3, 84, 84)) == (1,)


def test_horizons_of_a_stack_length_or_0_do_not_warn_and_come_back_ascending() -> None:
    assert resolve_horizons((8, 0, 4), (4, 84, 84)) == (0, 4, 8)


def test_horizons_longer_than_a_rollout_are_refused() -> None:
    env = stamped_vec_env(2)
    with pytest.raises(ValueError, match=r"`horizons`.*n_steps=5 of A2C.*\(5,\)"):
        A2C("CnnPolicy", env, n_steps=5, policy_kwargs=policy_kwargs(horizons=(5,)))


class Cutting(BaseFeaturesExtractor):
    """An extractor of the user's own, which hands on less than it is given."""

    def __init__(self, observation_space: spaces.Box, infonce_coef: float = 0.01) -> None:
        super().__init__(observation_space, features_dim=67)
        part = spaces.Box(observation_space.low[:3], observation_space.high[:3])
        self.inner = InfoNCEExtractor(part, infonce_coef=infonce_coef)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.inner(observations[:, :3])  # type: ignore[no-any-return]


def test_an_extractor_that_is_given_a_part_alone_is_refused() -> None:
    env = stamped_vec_env(2, StampedVectorEnv)
    kwargs: dict[str, Any] = {"features_extractor_class": Cutting}
    with pytest.raises(ValueError, match=r"the shape \(5,\) of what PPO observes, got \(3,\)"):
        PPO("MlpPolicy", env, policy_kwargs=kwargs)
    kwargs["features_extractor_kwargs"] = {"infonce_coef": 0.0}
    assert PPO("MlpPolicy", env, policy_kwargs=kwargs).policy is not None


def test_a_baseline_may_have_the_horizons_of_any_rival() -> None:
    kwargs = policy_kwargs(horizons=(8,), infonce_coef=0.0)
    model = A2C("CnnPolicy", stamped_vec_env(2), n_steps=5, policy_kwargs=kwargs)
    assert model.learn(20).num_timesteps == 20


def test_without_a_look_at_the_stack_actions_need_their_space() -> None:
    kwargs = policy_kwargs(action_conditioning=True, auto_bind=False)
    with pytest.raises(ValueError, match=r"`action_space`.*auto_bind=False, got None"):
        A2C("CnnPolicy", stamped_vec_env(2), policy_kwargs=kwargs)


def test_the_default_horizon_fits_into_a2cs_default_rollouts() -> None:
    env = stamped_vec_env(8, lengths=(30, 40))
    model = A2C("CnnPolicy", env, policy_kwargs=policy_kwargs(), seed=0).learn(80)
    assert model.n_steps == 5
    assert extractors_of(model)[0].last_infonce["n_pairs"] == 8


def test_a_callback_without_an_extractor_is_refused() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(ChannelsLastCNN))
    with pytest.raises(ValueError, match=r"`model` to have an InfoNCEExtractor"):
        model.learn(N_STEPS, callback=InfoNCECallback())


def test_a_rollout_without_a_legal_pair_logs_no_loss_warns_once_and_trains_rl() -> None:
    def env() -> DummyVecEnv:
        return DummyVecEnv([partial(StampedEnv, index, lengths=(1, 3)) for index in range(2)])

    plain = PPO(
        "CnnPolicy", env(), policy_kwargs=policy_kwargs(ChannelsLastCNN), seed=0, **PPO_SIZES
    )
    plain.learn(128)
    model = PPO("CnnPolicy", env(), policy_kwargs=policy_kwargs(), seed=0, **PPO_SIZES)
    logged = record_logger(model)
    with pytest.warns(
        UserWarning, match=r"Fewer than two pairs .* 4 steps apart .* goes on\. Lower"
    ) as caught:
        model.learn(128)
    assert len(caught) == 1
    assert logged["infonce/n_pairs"] == [0.0]
    assert "infonce/loss" not in logged
    assert_same_weights(model.policy, plain.policy)


def test_short_learns_that_leave_no_pair_are_named() -> None:
    model = ALGORITHMS["DQN"](policy_kwargs(), learning_starts=20, buffer_size=60)

    def learn_often() -> None:
        for _ in range(30):
            model.learn(4, reset_num_timesteps=False)

    with pytest.warns(UserWarning, match=r"4 steps apart.*let each learn\(\) take more steps"):
        learn_often()


@pytest.mark.parametrize("pairs_from", ["buffer", "minibatch"])
def test_a_nan_in_the_loss_leaves_rl_untouched_and_counts(pairs_from: str) -> None:
    plain = ALGORITHMS["PPO"](policy_kwargs(ChannelsLastCNN)).learn(128)
    model = ALGORITHMS["PPO"](policy_kwargs(pairs_from=pairs_from))
    (extractor,) = extractors_of(model)
    with torch.no_grad():
        next(extractor.infonce.parameters()).fill_(torch.nan)
    with pytest.warns(RuntimeWarning, match=r"1 of 1 InfoNCE losses .* NaN or infinite") as caught:
        model.learn(128)
    assert len(caught) == 1
    assert_same_weights(model.policy, plain.policy)


def test_nan_in_the_encoder_is_counted_where_spread_and_rank_are_taken() -> None:
    model = ALGORITHMS["DQN"]()
    (extractor,) = extractors_of(model)
    with torch.no_grad():
        next(extractor.cnn.parameters()).fill_(torch.nan)
    with pytest.warns(RuntimeWarning, match="1 of 1 InfoNCE losses"):
        model.learn(N_STEPS)
    assert np.isnan(extractor.last_infonce["effective_rank"])


@pytest.mark.slow
def test_training_stops_after_many_nans_in_a_row_with_weights_intact() -> None:
    model = ALGORITHMS["PPO"](n_epochs=40)
    (extractor,) = extractors_of(model)
    with torch.no_grad():
        next(extractor.infonce.parameters()).fill_(torch.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(FloatingPointError, match=rf"{MAX_NONFINITE} in a row.*model\.save"):
            model.learn(1280)
    encoder = list(extractor.encoder.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in encoder)


@pytest.mark.atari
@pytest.mark.parametrize("skip", [{}, {"frameskip": 2}])
def test_a_second_frame_skip_is_refused_with_the_reason(skip: dict[str, int]) -> None:
    env = make_atari_env("ALE/Pong-v5", n_envs=1, env_kwargs=skip)
    with pytest.raises(ValueError, match=r"skip frames once.*ALE/Pong-v5.*PongNoFrameskip-v4"):
        PPO("CnnPolicy", env, policy_kwargs=policy_kwargs())
    env.close()


@pytest.mark.slow
@pytest.mark.atari
def test_a_second_frame_skip_in_another_process_is_refused() -> None:
    def make() -> gym.Env[Any, Any]:
        import ale_py  # registers the games in the other process

        assert ale_py
        return AtariWrapper(gym.make("ALE/Pong-v5"))

    env = VecFrameStack(SubprocVecEnv([make]), 4)
    with pytest.raises(ValueError, match=r"skip frames once.*ALE/Pong-v5 \(frameskip=4\)"):
        PPO("CnnPolicy", env, policy_kwargs=policy_kwargs())
    env.close()


@pytest.mark.parametrize("answer", [None, False, []])
def test_an_environment_that_knows_no_wrappers_is_trained_on(answer: Any) -> None:
    class Adapter(DummyVecEnv):
        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Any:
            return answer

    env = Adapter([lambda: StampedEnv(lengths=(60, 80))])
    model = PPO("CnnPolicy", env, n_steps=64, policy_kwargs=policy_kwargs())
    assert model.learn(64).num_timesteps == 64


@pytest.mark.thorough
@pytest.mark.slow
def test_an_environment_whose_spec_cannot_travel_is_left_alive() -> None:
    def make() -> gym.Env[Any, Any]:
        env = StampedEnv(lengths=(60, 80))
        env.spec = EnvSpec("Stamped-v0", kwargs={"made_by": lambda: env})
        return MaxAndSkipEnv(env)

    env = SubprocVecEnv([make])
    model = PPO("CnnPolicy", env, policy_kwargs=policy_kwargs(), **PPO_SIZES).learn(32)
    assert extractors_of(model)[0].last_infonce["loss"] > 0
    env.close()


@pytest.mark.atari
def test_sb3s_own_atari_environments_work() -> None:
    env = make_atari_env("PongNoFrameskip-v4", n_envs=2, seed=0)
    kwargs = policy_kwargs(horizons=(4,))
    model = PPO("CnnPolicy", env, policy_kwargs=kwargs, **PPO_SIZES).learn(64)
    assert extractors_of(model)[0].last_infonce["loss"] > 0
    env.close()


@pytest.mark.atari
def test_an_unknown_game_names_near_ones() -> None:
    with pytest.raises(ValueError, match="pong"):
        make_atari_vec_env("pongg", n_envs=1)
