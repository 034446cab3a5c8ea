"""Vector environments are seeded copies, of which vectors and rewards can be normalised."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.util import obs_space_info

from rl_infonce.environments.make_vec_env import check_sizes, make_vec_env, normalized
from tests.environments.worlds import DICT, IMAGES

BOX = spaces.Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Sequence(BOX),
        spaces.OneOf([BOX, BOX]),
        spaces.Dict(a=BOX, b=spaces.Text(3)),
        spaces.Dict(a=BOX, b=spaces.Dict(c=BOX)),
        spaces.Tuple([BOX, spaces.Text(3)]),
    ],
    ids=str,
)
def test_what_sb3_cannot_hold_is_named(space: spaces.Space[Any]) -> None:
    with pytest.raises(
        ValueError, match=r"observations of Maze-v0 to be arrays of one size.*wrapper"
    ):
        check_sizes(space, "Maze-v0")


@pytest.mark.parametrize(
    "space",
    [BOX, spaces.Discrete(3), spaces.MultiBinary(2), spaces.Dict(a=BOX), spaces.Tuple([BOX])],
    ids=str,
)
def test_what_sb3_gives_a_size_passes(space: spaces.Space[Any]) -> None:
    check_sizes(space, "Maze-v0")
    _, shapes, _ = obs_space_info(space)
    assert None not in shapes.values()


def test_copies_are_monitored_and_begin_by_their_seeds() -> None:
    env = make_vec_env("Pendulum-v1", 3, seed=4)
    assert isinstance(env, DummyVecEnv)
    assert env.env_is_wrapped(Monitor) == [True] * 3
    first = np.asarray(env.reset())
    again = np.asarray(make_vec_env("Pendulum-v1", 2, seed=5).reset())
    np.testing.assert_array_equal(first[1:], again)
    assert not np.array_equal(first[0], first[1])


def test_vectors_and_rewards_are_normalised_and_images_are_not() -> None:
    vectors = normalized(make_vec_env("Pendulum-v1", 2, seed=0), gamma=0.9)
    assert (vectors.norm_obs, vectors.norm_reward, vectors.gamma) == (True, True, 0.9)
    vectors.reset()
    for _ in range(50):
        vectors.step(np.zeros((2, 1), np.float32))
    assert isinstance(vectors.obs_rms, RunningMeanStd)
    assert abs(float(vectors.obs_rms.mean[0])) > 0.01
    images = normalized(make_vec_env(IMAGES, 1, seed=0), gamma=0.9)
    assert np.asarray(images.reset()).dtype == np.uint8
    assert images.norm_reward
    both = normalized(make_vec_env(DICT, 1, seed=0), gamma=0.9)
    seen = both.reset()
    assert isinstance(seen, dict)
    assert seen["image"].dtype == np.uint8
    assert both.norm_obs_keys == ["speed"]
    assert isinstance(both.observation_space, spaces.Dict)


def test_a_replay_buffer_behind_a_normalizer_holds_images_with_channels_first() -> None:
    def make() -> FakeImageEnv:
        return FakeImageEnv(screen_height=36, screen_width=40, n_channels=3, channel_first=False)

    env = normalized(DummyVecEnv([make]), gamma=0.9)
    model = DQN("CnnPolicy", env, buffer_size=30, learning_starts=10, batch_size=4, seed=0)
    model.learn(20)
    assert model.replay_buffer is not None
    assert model.replay_buffer.observations.shape[2:] == (3, 36, 40)
