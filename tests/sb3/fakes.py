"""Small environments whose observations encode environment, episode and time."""

from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from rl_infonce import temporal
from rl_infonce.sb3.experience import Experience

IMAGE_SHAPE = (4, 36, 36)
VECTOR_SHAPE = (5,)

IMAGES = spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)
VECTORS = spaces.Box(-1.0, 1.0, VECTOR_SHAPE)

IntArray = npt.NDArray[np.int64]


class Stamp(NamedTuple):
    """What `decode` reads from observations; every field has the shape of the batch."""

    env: IntArray
    episode: IntArray
    time: IntArray


def encode(env: int, episode: int, time: int) -> npt.NDArray[np.uint8]:
    """Write the three numbers, two bytes each, into the first pixels of an image."""
    image = np.zeros(IMAGE_SHAPE, dtype=np.uint8)
    image[0, 0, :6] = np.array([env, episode, time], dtype=">u2").view(np.uint8)
    # A dark disc that moves, so that an encoder has something to see.
    image[:, 8 + time % 20, 8 + episode % 20] = 255
    return image


def encode_vector(env: int, episode: int, time: int) -> npt.NDArray[np.float32]:
    """Write the three numbers into a vector, beside two that turn with time."""
    turning = [np.cos(0.3 * time + episode), np.sin(0.3 * time + episode)]
    return np.array([env, episode, time, *turning], dtype=np.float32)


def is_stamped(observations: npt.NDArray[Any]) -> bool:
    """Return whether `decode` can read observations: not if they were normalised."""
    return observations.dtype == np.uint8 or observations.shape[-1:] == VECTOR_SHAPE


def decode(observations: npt.NDArray[Any]) -> Stamp:
    """Read the numbers back from uint8 images [..., 4, 36, 36] or from vectors [..., 5]."""
    if observations.shape[-1:] == VECTOR_SHAPE:
        return Stamp(*np.moveaxis(observations[..., :3].astype(np.int64), -1, 0))
    pixels = observations[..., 0, 0, :6].astype(np.int64)
    env, episode, time = (pixels[..., i] * 256 + pixels[..., i + 1] for i in (0, 2, 4))
    return Stamp(env, episode, time)


class StampedEnv(gym.Env[npt.NDArray[Any], Any]):
    """Episodes of random lengths that terminate or are truncated; the images say where they are.

    Episode numbers never start again, whatever resets the environment.
    """

    def __init__(
        self, env: int = 0, *, lengths: tuple[int, int] = (1, 9), continuous: bool = False
    ) -> None:
        self.env, self.episode, self.time = env, -1, 0
        self.lengths, self.length = lengths, 0
        self.rng = np.random.default_rng(env)
        self.observation_space = self.space()
        self.action_space = spaces.Discrete(3)
        if continuous:
            self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def space(self) -> spaces.Box:
        return spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)

    def observation(self) -> npt.NDArray[Any]:
        return encode(self.env, self.episode, self.time)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        self.length = int(self.rng.integers(*self.lengths, endpoint=True))
        return self.observation(), {}

    def step(self, action: Any) -> tuple[npt.NDArray[Any], float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time >= self.length
        terminated = over and bool(self.rng.random() < 0.5)
        return self.observation(), 1.0, terminated, over and not terminated, {}

    def get_state(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("episode", "time", "length")}
        return {"numbers": numbers, "rng": self.rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state["numbers"])
        self.rng.bit_generator.state = state["rng"]

    def action_masks(self) -> npt.NDArray[np.bool_]:
        return np.ones(3, dtype=np.bool_)


class StampedVectorEnv(StampedEnv):
    """The same with vectors, whose first three numbers say where they are."""

    def space(self) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, VECTOR_SHAPE, np.float32)

    def observation(self) -> npt.NDArray[Any]:
        return encode_vector(self.env, self.episode, self.time)


class StampedDictEnv(gym.ObservationWrapper[dict[str, Any], Any, npt.NDArray[np.uint8]]):
    """The stamped image beside a vector, under the keys `image` and `speed`."""

    def __init__(self, env: StampedEnv) -> None:
        super().__init__(env)
        speed = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(image=env.observation_space, speed=speed)

    def observation(self, observation: npt.NDArray[np.uint8]) -> dict[str, Any]:
        return {"image": observation, "speed": np.zeros(2, dtype=np.float32)}


def stamped_vec_env(n_envs: int, kind: type[StampedEnv] = StampedEnv, **kwargs: Any) -> DummyVecEnv:
    """Make `n_envs` stamped environments, numbered from 0."""
    return DummyVecEnv([partial(kind, env, **kwargs) for env in range(n_envs)])


def legal_anchors(experience: Experience, horizon: int) -> tuple[IntArray, IntArray]:
    """Return every (step, env) whose episode still runs `horizon` steps later, by step."""
    places = np.indices((experience.n_steps, experience.n_envs)).reshape(2, -1)
    ids = experience.episodes(*places).reshape(experience.n_steps, experience.n_envs)
    return temporal.legal_anchors(ids, horizon)
