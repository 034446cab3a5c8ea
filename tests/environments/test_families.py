"""Families are seen as images, and named with their extra where they are missing."""

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_infonce.environments.families import screens
from rl_infonce.environments.ids import find_spec, make_env


class ScreenEnv(gym.Env[Any, Any]):
    """Shows as many white columns as there were steps."""

    def __init__(self) -> None:
        screen = spaces.Box(0, 255, (240, 320, 3), np.uint8)
        self.observation_space = spaces.Dict(screen=screen, gamevariables=spaces.Box(0, 1, (1,)))
        self.action_space = spaces.Discrete(4)
        self.n_steps = 0

    def _seen(self) -> dict[str, Any]:
        screen = np.zeros((240, 320, 3), np.uint8)
        screen[:, : 80 * self.n_steps] = 255
        return {"screen": screen, "gamevariables": np.zeros(1, np.float32)}

    def reset(self, **_given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.n_steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        return self._seen(), 0.0, False, False, {}


def test_a_screen_becomes_a_stack_of_small_gray_images() -> None:
    env = screens(ScreenEnv())
    assert env.observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
    env.reset()
    for _ in range(3):
        seen = env.step(0)[0]
    assert (seen.shape, seen.dtype) == ((4, 84, 84), np.uint8)
    np.testing.assert_allclose(seen.mean(axis=(1, 2)) / 255, [0, 0.25, 0.5, 0.75], atol=0.02)


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [
        ("minigrid", "MiniGrid-Empty-5x5-v0", "minigrid"),
        ("vizdoom", "VizdoomBasic-v1", "vizdoom"),
        ("shimmy", "dm_control/cartpole-swingup-v0", "dmc"),
        ("dm_control", "dm_control/cartpole-swingup-v0", "dmc"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
) -> None:
    loaded = [each for each in sys.modules if each.split(".")[0] == module]
    for each in {*loaded, "shimmy.dm_control_compatibility"}:
        monkeypatch.delitem(sys.modules, each, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf'{name} needs, .*pip install "rl-infonce\[{extra}\]"'):
        find_spec(name)


def test_minigrid_shows_what_the_agent_sees() -> None:
    pytest.importorskip("minigrid")
    env = make_env("MiniGrid-DoorKey-5x5-v0")
    assert env.observation_space == spaces.Box(0, 255, (56, 56, 3), np.uint8)
    assert env.reset(seed=0)[0].any()


def test_vizdoom_shows_its_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vizdoom")
    monkeypatch.chdir(tmp_path)  # where it writes its settings
    env = make_env("VizdoomBasic-v1")
    assert env.observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert env.reset(seed=0)[0].any()
    env.close()
