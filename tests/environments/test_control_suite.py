"""dm_control is seen as pictures, with each action repeated, and goes on to the last bit."""

import os
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_infonce.environments import families
from rl_infonce.environments.control_suite import (
    ReplayableTask,
    check_mujoco,
    drawn_at,
    n_repeats,
)
from rl_infonce.environments.ids import find_spec as find_env
from rl_infonce.environments.make_vec_env import make_vec_env
from rl_infonce.files.state_file import pack_state, unpack_state
from rl_infonce.resuming.env_state import UnknownStateError, get_env_state, set_env_state
from tests.files.test_state_file import assert_same
from tests.resuming.test_env_state import play

os.environ.setdefault("MUJOCO_GL", "egl")  # read once, when dm_control is imported
needs_dm_control = pytest.mark.skipif(find_spec("dm_control") is None, reason="needs dm_control")
CARTPOLE = "dm_control/cartpole-swingup-v0"
# A target in the model, terrain, a task that is made at random, physics with contacts and muscles.
TASKS = ["reacher-easy", "quadruped-escape", "lqr-lqr_2_1", "point_mass-hard", "dog-fetch"]


class WalkingEnv(gym.Env[Any, Any]):
    """A walk whose goal is drawn at reset, by a RandomState as dm_control's tasks do."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.np_random = np.random.RandomState(0)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.np_random = np.random.RandomState(seed)  # type: ignore[assignment]
        self.place, self.goal, self.n_steps = 0.0, float(self.np_random.normal()), 0
        return np.array([self.place, self.goal]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        self.place += float(action[0]) + float(self.np_random.normal())
        seen = np.array([self.place, self.goal])
        return seen, 1.0, False, self.n_steps == self.length, {}


def walk(env: ReplayableTask, n_steps: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    seen: list[Any] = []
    action = np.empty(1)  # which is reused, as a caller may
    for _ in range(n_steps):
        action[:] = rng.uniform(-1, 1, 1)
        *step, _info = env.step(action)
        seen.append(tuple(step))
        if step[2] or step[3]:
            seen.append(env.reset()[0])
    return seen


def test_actions_are_repeated_and_rewards_added_until_the_episode_ends() -> None:
    env, once = ReplayableTask(WalkingEnv(), 4), WalkingEnv()
    np.testing.assert_array_equal(env.reset(seed=1)[0], once.reset(seed=1)[0])
    ends = [env.step([0.5])[1:4] for _ in range(3)]
    assert ends == [(4.0, False, False), (4.0, False, False), (2.0, False, True)]
    for _ in range(10):
        once.step([0.5])
    assert env.task.unwrapped.place == once.place  # type: ignore[attr-defined]


@pytest.mark.parametrize("seeded", [True, False])
def test_an_episode_is_played_again_from_its_random_numbers(seeded: bool) -> None:
    env = ReplayableTask(WalkingEnv(), 2)
    env.reset(seed=1)
    walk(env, 7, seed=0)
    env.reset(seed=2 if seeded else None)
    walk(env, 3, seed=1)
    state = unpack_state(pack_state(env.get_state()))
    expected = walk(env, 12, seed=2)
    again = ReplayableTask(WalkingEnv(), 2)
    again.set_state(state)
    assert_same(walk(again, 12, seed=2), expected)


def test_actions_are_repeated_as_in_the_literature() -> None:
    domains = ("cartpole-swingup", "reacher-easy", "cheetah-run", "finger-spin", "walker-walk")
    repeats = [n_repeats(f"dm_control/{name}-v0") for name in (*domains, "ball_in_cup-catch")]
    assert repeats == [8, 4, 4, 2, 2, 4]  # Yarats et al. 2021
    cameras = [drawn_at(f"dm_control/{name}-v0", (84, 84))["render_kwargs"]["camera_id"]
               for name in ("cartpole-swingup", "quadruped-walk")]  # fmt: skip
    assert cameras == [0, 2]


def test_mujoco_4_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_mujoco("3.17.0")
    monkeypatch.setattr(families, "version", lambda _name: "4.0.0")
    monkeypatch.setattr("importlib.import_module", lambda _name: None)
    with pytest.raises(
        ValueError, match=r'got: MuJoCo 4\.0\.0, .* `pip install "rl-infonce\[dmc\]"`'
    ):
        families.import_family(CARTPOLE)


def test_a_missing_opengl_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> None:
        raise AttributeError("'NoneType' object has no attribute 'glGetError'")

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(ValueError, match=r"needs, got: .*glGetError'\. .* set MUJOCO_GL=egl"):
        families.import_family(CARTPOLE)


@needs_dm_control
@pytest.mark.slow
def test_a_task_is_seen_as_a_stack_of_gray_pictures() -> None:
    env = make_vec_env(CARTPOLE, 2, seed=0)
    assert env.observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
    first = np.asarray(env.reset())
    assert first.std() > 10
    assert not np.array_equal(first[0], first[1]), "copies begin by their own seeds"
    seen = play(env, 125, seed=0)
    assert [bool(dones.any()) for _, _, dones, _ in seen].index(True) == 124  # 1000 / 8
    assert not np.array_equal(seen[9][0][0, 0], seen[9][0][0, 3]), "the stack shows movement"
    assert seen[-1][3][0]["TimeLimit.truncated"]
    env.close()


@needs_dm_control
def test_a_mistyped_task_has_near_names() -> None:
    with pytest.raises(ValueError, match="Did you mean 'dm_control/cartpole-swingup-v0'"):
        find_env("dm_control/cartpole-swingup")


@needs_dm_control
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_task_goes_on_as_if_never_interrupted(task: str) -> None:
    env_id = f"dm_control/{task}-v0"
    env = make_vec_env(env_id, 1, seed=0)
    env.reset()
    play(env, 4, seed=0)
    env.reset()
    play(env, 4, seed=1)
    state = unpack_state(pack_state(get_env_state(env)))
    expected = play(env, 6, seed=2)
    expected_next = np.array(env.reset())
    again = make_vec_env(env_id, 1, seed=5)
    again.reset()
    set_env_state(again, state)
    assert_same(play(again, 6, seed=2), expected)
    np.testing.assert_array_equal(np.array(again.reset()), expected_next)


@needs_dm_control
def test_what_is_not_of_the_suite_has_no_readable_state() -> None:
    """Mazes of dm_control.locomotion are not built the same twice."""
    families.import_family(CARTPOLE)
    env = make_vec_env("dm_control/reach_site_features-v0", 1, seed=0)
    with pytest.raises(UnknownStateError, match="got DmControlCompatibilityV0"):
        get_env_state(env)
