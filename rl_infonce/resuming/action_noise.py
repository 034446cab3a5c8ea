"""The state of SB3's action noise: what it drew last, where the next draw depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    VectorizedActionNoise,
)

from rl_infonce.resuming.env_state import UnknownStateError

_KNOWN = (NormalActionNoise, OrnsteinUhlenbeckActionNoise)


def get_noise_state(noise: ActionNoise | None) -> list[Any]:
    """Return the last values of what has a memory; all draws are of numpy's global stream.

    Raises:
        UnknownStateError: If the noise is of a class of the user's, which may have a state.
    """
    for each in _parts(noise):
        if type(each) not in _KNOWN:
            raise UnknownStateError(f"Action noise {type(each).__name__} starts anew.")
    return [each.noise_prev for each in _remembering(noise)]


def set_noise_state(noise: ActionNoise | None, state: Sequence[Any]) -> None:
    """Set the last values that `get_noise_state` returned; ValueError if they do not fit."""
    own, values = _remembering(noise), [np.array(each) for each in state]
    shapes = [np.shape(each.noise_prev) for each in own]
    if [each.shape for each in values] != shapes or any(v.dtype.kind not in "fiu" for v in values):
        raise ValueError(f"Expected action noise of shapes {shapes}, got {state!r:.200}.")
    for each, value in zip(own, values, strict=True):
        each.noise_prev = value


def noise_words(noise: ActionNoise | None) -> str | None:
    """Return what a noise draws, as a setting; for an unknown one, its class."""
    if noise is None:
        return None
    one = noise.base_noise if isinstance(noise, VectorizedActionNoise) else noise
    return repr(one) if type(one) in _KNOWN else type(one).__qualname__


def _parts(noise: ActionNoise | None) -> list[ActionNoise]:
    """Return the noise of each environment; `learn` makes them from one."""
    if noise is None:
        return []
    return noise.noises if type(noise) is VectorizedActionNoise else [noise]


def _remembering(noise: ActionNoise | None) -> list[OrnsteinUhlenbeckActionNoise]:
    return [each for each in _parts(noise) if isinstance(each, OrnsteinUhlenbeckActionNoise)]
