"""Games that go on from a state are bit for bit those that were never interrupted."""

from typing import Any

import numpy as np
import pytest

from rl_infonce.atari import AtariVecEnv, make_atari_vec_env
from rl_infonce.files.state_file import pack_state, unpack_state
from tests.atari import test_vec_env
from tests.atari.test_vec_env import started
from tests.further import further

pytestmark = pytest.mark.atari


def play(env: AtariVecEnv, n_steps: int, seed: int) -> list[Any]:
    seen = []
    for images, rewards, dones, infos in test_vec_env.play(env, n_steps, seed):
        for info in infos:
            info.get("episode", {}).pop("t", None)
            info.pop("terminal_observation", None)
        seen.append((np.asarray(images).tobytes(), rewards.tolist(), dones.tolist(), infos))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "sticky"), [(None, 0.25), further(7, 0.0)])
def test_a_state_carries_on_where_it_was_taken(seed: int | None, sticky: float) -> None:
    given: dict[str, Any] = {"n_envs": 3, "repeat_action_probability": sticky}
    env = started("breakout", seed=seed, **given)
    play(env, 150, seed=0)
    state = unpack_state(pack_state(env.get_state()))
    expected = play(env, 250, seed=1)
    assert any(any(dones) for _, _, dones, _ in expected)
    again = started("breakout", seed=99, n_threads=1, **given)
    play(again, 10, seed=5)
    images = again.set_state(state)
    assert images is not None
    assert play(again, 250, seed=1) == expected
    assert images.shape == (3, 4, 84, 84)


def test_the_observation_comes_back_too() -> None:
    env = make_atari_vec_env("pong", n_envs=2, seed=1)
    first = env.reset()
    again = make_atari_vec_env("pong", 2).set_state(env.get_state())
    assert np.array_equal(np.asarray(again), first)
    seen = play(env, 50, seed=0)
    last = make_atari_vec_env("pong", 2).set_state(env.get_state())
    assert np.asarray(last).tobytes() == seen[-1][0]


@pytest.mark.thorough
def test_resets_are_part_of_the_history_until_new_seeds_make_it_irrelevant() -> None:
    env = started("breakout", 2, seed=3)
    play(env, 40, seed=0)
    env.reset()  # keeps the random numbers
    play(env, 30, seed=1)
    env.seed(11)  # of the reset to come
    state = env.get_state()
    assert [len(each["actions"]) for each in state["history"]] == [40, 30]
    again = make_atari_vec_env("breakout", n_envs=2)
    again.set_state(state)
    assert play(env, 60, seed=2) == play(again, 60, seed=2)
    assert np.array_equal(env.reset(), again.reset())
    play(env, 5, seed=3)
    state = env.get_state()
    assert [each["seeds"].tolist() for each in state["history"]] == [[11, 12]]


def test_a_step_that_a_reset_swallowed_is_played_again() -> None:
    env = started("breakout", 2, seed=3, repeat_action_probability=0.25)
    env.step_async(np.array([1, 2]))
    env.reset()
    again = make_atari_vec_env("breakout", n_envs=2, repeat_action_probability=0.25)
    again.set_state(env.get_state())
    assert play(env, 60, seed=2) == play(again, 60, seed=2)


@pytest.mark.parametrize("n_steps", [0, 5])
def test_a_pending_step_is_no_part_of_the_state_that_is_set(n_steps: int) -> None:
    env = make_atari_vec_env("breakout", n_envs=2, seed=3)
    first = env.reset()
    seen = play(env, n_steps, seed=0)
    other = started("breakout", 2, seed=8)
    other.step_async(np.array([1, 2]))
    images = np.asarray(other.set_state(env.get_state()))
    assert images.tobytes() == (seen[-1][0] if seen else first.tobytes())
    assert play(other, 20, seed=1) == play(env, 20, seed=1)


def test_a_refused_state_leaves_the_pending_step() -> None:
    env = started("breakout", 2, seed=3)
    state = {**env.get_state(), "settings": {}}
    env.step_async(np.array([1, 2]))
    with pytest.raises(ValueError, match="same settings"):
        env.set_state(state)
    env.step_wait()


def test_a_state_needs_no_pending_step() -> None:
    env = started("pong", 1, seed=0)
    env.step_async(np.array([0]))
    with pytest.raises(RuntimeError, match=r"Expected `step_wait\(\)` before `get_state"):
        env.get_state()


@pytest.mark.thorough
def test_a_state_before_the_first_reset_holds_the_seeds() -> None:
    env = make_atari_vec_env("breakout", n_envs=2, seed=7)
    again = started("breakout", 2, seed=1)
    assert again.set_state(unpack_state(pack_state(env.get_state()))) is None
    with pytest.raises(RuntimeError, match="before the first step"):
        again.step(np.array([0, 0]))
    assert np.array_equal(again.reset(), env.reset())
    assert play(env, 40, seed=0) == play(again, 40, seed=0)


@pytest.mark.thorough
def test_states_of_other_games_are_refused() -> None:
    env = started("pong", 2, seed=0)
    state = env.get_state()
    with pytest.raises(ValueError, match=r"got game='pong' \(not 'breakout'\); n_envs=2 \(not 1\)"):
        make_atari_vec_env("breakout", n_envs=1).set_state(state)
    play(env, 3, seed=0)
    state = env.get_state()
    state["counters"]["lengths"] += 1
    other = make_atari_vec_env("pong", n_envs=2)
    with pytest.raises(ValueError, match="the versions that they were played with"):
        other.set_state(state)
    with pytest.raises(RuntimeError, match="before the first step"):
        other.step(np.array([0, 0]))
