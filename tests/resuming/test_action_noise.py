"""Action noise goes on exactly where a training was killed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import TD3
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    VectorizedActionNoise,
)

from rl_infonce.resuming.action_noise import get_noise_state, set_noise_state
from rl_infonce.resuming.env_state import UnknownStateError
from rl_infonce.resuming.resume_callback import ResumeCallback
from tests.resuming.killing import assert_goes_on_exactly, learn, pendulum


def td3(noise: ActionNoise, n_envs: int = 1) -> TD3:
    sizes: dict[str, Any] = {"learning_starts": 20, "batch_size": 8, "buffer_size": 200}
    kwargs = {"net_arch": [8]}
    return TD3(
        "MlpPolicy", pendulum(n_envs), action_noise=noise, policy_kwargs=kwargs, seed=1, **sizes
    )


def wandering(n_envs: int = 1, sigma: float = 2.0) -> Any:
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, sigma), dt=0.1)
    return noise if n_envs == 1 else VectorizedActionNoise(noise, n_envs)


@pytest.mark.parametrize(
    ("kind", "n_envs"), [("normal", 1), ("wandering", 1), ("wandering", 2)], ids=str
)
def test_a_killed_training_with_noise_equals_an_uninterrupted_one(
    kind: str, n_envs: int, tmp_path: Path
) -> None:
    def build() -> TD3:
        normal = NormalActionNoise(np.zeros(1), np.full(1, 0.5))
        return td3(normal if kind == "normal" else wandering(), n_envs)

    assert_goes_on_exactly(build, tmp_path, [78], 84)


def test_other_noise_is_another_setting(tmp_path: Path) -> None:
    learn(td3(wandering()), ResumeCallback(tmp_path, save_freq=10), n=20)
    with pytest.raises(ValueError, match=r"action_noise is '.*sigma=\[1.\]\)' \(was '.*\[2.\]"):
        ResumeCallback(tmp_path).restore(td3(wandering(sigma=1.0)))


def test_the_noise_of_each_environment_goes_on() -> None:
    noise, again = wandering(3), wandering(3)
    noise()
    set_noise_state(again, get_noise_state(noise))
    assert [each.noise_prev for each in again.noises] == [each.noise_prev for each in noise.noises]
    assert noise.noises[0].noise_prev != noise.noises[1].noise_prev
    assert get_noise_state(None) == []


@pytest.mark.parametrize("state", [[], [np.zeros(1)], [np.zeros(2)] * 2, [["a"], ["b"]], "ab"])
def test_noise_of_another_form_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match=r"of shapes \[\(1,\), \(1,\)\], got"):
        set_noise_state(wandering(2), state)


class Own(NormalActionNoise):
    """Of the user's, with a state that nobody knows."""


def test_noise_of_ones_own_cannot_be_read() -> None:
    one = Own(np.zeros(1), np.ones(1))
    for noise in (one, VectorizedActionNoise(one, 2)):
        with pytest.raises(UnknownStateError, match="Action noise Own starts anew"):
            get_noise_state(noise)
