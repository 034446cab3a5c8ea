"""The screens are of the very game that was played."""

from typing import Any

import cv2
import numpy as np
import pytest

from rl_infonce import make_atari_vec_env
from rl_infonce.atari.screens import replay_screens

pytestmark = pytest.mark.atari


def as_the_agent_sees_it(screen: Any) -> Any:
    gray = cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY)
    return cv2.resize(gray, (84, 84), interpolation=cv2.INTER_AREA)


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_screens_are_what_the_agents_images_were_made_of(sticky: float) -> None:
    env = make_atari_vec_env("breakout", 2, seed=5, repeat_action_probability=sticky)
    rng = np.random.default_rng(0)
    observations: Any = env.reset()
    seen = [observations[1, -1]]
    while True:
        observations, _, _, infos = env.step(rng.integers(env.n_actions, size=2))
        if "episode" in infos[1]:
            seen.append(infos[1]["terminal_observation"][-1])
            break
        seen.append(observations[1, -1])
    env.step(np.zeros(2, int))  # the next game is not shown
    screens = list(replay_screens(env.get_state(), 1))
    assert screens[0].shape == (210, 160, 3)
    assert len(screens) == len(seen) == infos[1]["episode"]["l"] + 1
    assert len(np.unique(screens[-1])) > 3, "no colours"
    for screen, image in zip(screens, seen, strict=True):
        np.testing.assert_array_equal(as_the_agent_sees_it(screen), image)


def test_what_has_not_ended_is_shown_as_far_as_it_went() -> None:
    env = make_atari_vec_env("pong", 1, seed=0)
    env.reset()
    for _ in range(3):
        env.step(np.zeros(1, int))
    assert len(list(replay_screens(env.get_state()))) == 4
    env.reset()  # goes on with the random numbers it has
    with pytest.raises(ValueError, match="reset once"):
        next(replay_screens(env.get_state()))
    with pytest.raises(IndexError):
        next(replay_screens(env.get_state(), 1))
