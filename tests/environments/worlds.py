"""Stamped environments under Gymnasium ids; importing this module registers them."""

from typing import Any

import gymnasium as gym

from tests.sb3.fakes import StampedDictEnv, StampedEnv

WORLDS = "tests.environments.worlds"
IMAGES, CONTINUOUS, DICT = (
    f"{WORLDS}:{name}" for name in ("Stamped-v0", "StampedContinuous-v0", "test/StampedDict-v0")
)


def stamped(**given: Any) -> StampedEnv:
    return StampedEnv(**given)


def stamped_dict(**given: Any) -> StampedDictEnv:
    return StampedDictEnv(StampedEnv(**given))


if "Stamped-v0" not in gym.registry:
    lengths = {"lengths": (9, 15)}
    gym.register("Stamped-v0", stamped, kwargs=lengths)
    gym.register("StampedContinuous-v0", stamped, kwargs={**lengths, "continuous": True})
    gym.register("test/StampedDict-v0", stamped_dict, kwargs=lengths)
