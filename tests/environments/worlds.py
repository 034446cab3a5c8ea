"""Stamped environments under Gymnasium ids; importing this module registers them."""

from typing import Any

import gymnasium as gym
import numpy as np

from tests.sb3.fakes import StampedDictEnv, StampedEnv, StampedVectorEnv

WORLDS = "tests.environments.worlds"
IMAGES, CONTINUOUS, DICT, VECTOR, TEXT, TEXT_BESIDE = (
    f"{WORLDS}:{name}"
    for name in (
        *("Stamped-v0", "StampedContinuous-v0", "test/StampedDict-v0"),
        *("StampedVector-v0", "StampedText-v0", "StampedTextBeside-v0"),
    )
)


class ActedEnv(StampedEnv):
    """Its rewards are its actions, so that returns tell policies apart."""

    def step(self, action: Any) -> Any:
        image, _, terminated, truncated, info = super().step(action)
        return image, float(np.sum(action)), terminated, truncated, info


def acted(**given: Any) -> ActedEnv:
    return ActedEnv(**given)


def acted_dict(**given: Any) -> StampedDictEnv:
    return StampedDictEnv(ActedEnv(**given))


def stamped_vectors(**given: Any) -> StampedVectorEnv:
    return StampedVectorEnv(**given)


def told(**given: Any) -> gym.Env[Any, Any]:
    return gym.wrappers.TransformObservation(ActedEnv(**given), str, gym.spaces.Text(9))


def told_beside(**given: Any) -> gym.Env[Any, Any]:
    env = acted_dict(**given)
    seen = env.observation_space
    assert isinstance(seen, gym.spaces.Dict)
    space = gym.spaces.Dict({**seen.spaces, "mission": gym.spaces.Text(9)})
    return gym.wrappers.TransformObservation(env, lambda seen: {**seen, "mission": "go"}, space)


if "Stamped-v0" not in gym.registry:
    lengths = {"lengths": (9, 15)}
    gym.register("Stamped-v0", acted, kwargs=lengths)
    gym.register("StampedContinuous-v0", acted, kwargs={**lengths, "continuous": True})
    gym.register("test/StampedDict-v0", acted_dict, kwargs=lengths)
    gym.register("StampedVector-v0", stamped_vectors, kwargs=lengths)
    gym.register("StampedText-v0", told, kwargs=lengths)
    gym.register("StampedTextBeside-v0", told_beside, kwargs=lengths)
