import re
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from rl_infonce.atari import AtariVecEnv, make_atari_vec_env
from tests.further import further

pytestmark = pytest.mark.atari

Step = tuple[Any, npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]]


def started(game: str, n_envs: int = 1, **settings: Any) -> AtariVecEnv:
    env = make_atari_vec_env(game, n_envs, **settings)
    env.reset()
    return env


def play(env: AtariVecEnv, n_steps: int, seed: int = 0) -> Iterator[Step]:
    """Step with random actions drawn from their own generator."""
    rng = np.random.default_rng(seed)
    for _ in range(n_steps):
        yield env.step(rng.integers(0, env.n_actions, env.num_envs))


def trajectory(n_steps: int = 60, seed: int | None = None, **kwargs: Any) -> npt.NDArray[np.uint8]:
    env = make_atari_vec_env("breakout", seed=seed, **kwargs)
    frames = [env.reset(), *(step[0] for step in play(env, n_steps))]
    env.close()
    return np.stack(frames)


def test_observations_rewards_and_dones_are_what_sb3_expects() -> None:
    env = make_atari_vec_env("Pong", n_envs=3, seed=0)
    assert env.reset_infos == [{}] * 3
    observations = env.reset()
    assert env.reset_infos == [{"lives": 0}] * 3
    assert env.observation_space.shape == (4, 84, 84)
    assert env.n_actions == 6
    for observations, rewards, dones, infos in play(env, 5):
        assert observations.shape == (3, 4, 84, 84)
        assert all(image in env.observation_space for image in observations)
        assert rewards.dtype == np.float32
        assert dones.dtype == np.bool_
        assert rewards.shape == dones.shape == (len(infos),) == (3,)
        assert all(info == {"lives": 0, "TimeLimit.truncated": False} for info in infos)


def test_stack_and_action_set_follow_the_arguments() -> None:
    env = make_atari_vec_env("pong", n_envs=1, frame_stack=2, full_action_space=True)
    assert env.reset().shape == (1, 2, 84, 84)
    assert env.n_actions == 18


@pytest.mark.parametrize(
    ("game", "noop_max", "frames"),
    [
        further("pong", 0, {1}),
        ("pong", 3, {1, 2}),
        further("freeway", 0, {0}),
        further("freeway", 3, {0, 1, 2}),
    ],
)
def test_games_start_after_less_than_noop_max_frames_with_fire_among_them(
    game: str, noop_max: int, frames: set[int]
) -> None:
    env = make_atari_vec_env(game, 6, noop_max=noop_max)
    _, info = env._open_emulator().reset(seed=np.arange(6))
    assert set(info["frame_number"].tolist()) == frames


def test_frame_skip_advances_the_game_by_that_many_frames() -> None:
    lengths = []
    for frame_skip in (2, 8):
        env = started("pong", 1, frame_skip=frame_skip, max_frames_per_episode=64)
        lengths.append(next(t for t, step in enumerate(play(env, 100), 1) if step[2][0]))
    assert lengths == [32, 8]


def test_later_steps_do_not_change_an_array_returned_earlier() -> None:
    env = make_atari_vec_env("breakout", n_envs=2, seed=1)
    returned = [env.reset()]
    copies = [returned[0].copy()]
    for observations, _, _, infos in play(env, 80):
        last = [info["terminal_observation"] for info in infos if "terminal_observation" in info]
        returned += [observations, *last]
        copies += [array.copy() for array in (observations, *last)]
    assert len(returned) > 81, "no life was lost"
    for array, copied in zip(returned, copies, strict=True):
        np.testing.assert_array_equal(array, copied)


def test_a_lost_life_ends_the_episode_but_not_the_game() -> None:
    env = started("breakout", n_envs=2, seed=0, noop_max=0)
    before, n_lost = [5, 5], 0
    for observations, _, dones, infos in play(env, 60):
        for i in np.flatnonzero(dones):
            n_lost += 1
            assert infos[i]["lives"] == before[i] - 1 > 0
            assert "episode" not in infos[i]
            assert not infos[i]["TimeLimit.truncated"]
            last = infos[i]["terminal_observation"]
            np.testing.assert_array_equal(last, observations[i])
            assert not np.shares_memory(last, observations), "a view, not a copy"
        before = [info["lives"] for info in infos]
    assert n_lost >= 2


@pytest.mark.parametrize("terminal_on_life_loss", [True, further(False)])
def test_game_over_reports_the_raw_return_and_restarts(terminal_on_life_loss: bool) -> None:
    env = started("breakout", 2, seed=2, terminal_on_life_loss=terminal_on_life_loss)
    returns, lengths, n_dones, n_games = np.zeros(2), np.zeros(2, int), 0, 0
    for observations, rewards, dones, infos in play(env, 500):
        returns += rewards
        lengths += 1
        n_dones += int(dones.sum())
        for i in range(2):
            assert dones[i] == ("terminal_observation" in infos[i])
            if "episode" not in infos[i]:
                continue
            n_games += 1
            assert dones[i]
            assert infos[i]["lives"] == 0
            assert env.reset_infos[i] == {"lives": 5}
            # Breakout's bricks give 1, 4 or 7 points: random play hits the one-point rows only.
            assert infos[i]["episode"]["r"] == returns[i]
            assert infos[i]["episode"]["l"] == lengths[i]
            assert infos[i]["episode"]["t"] >= 0
            assert (infos[i]["terminal_observation"] != observations[i]).any()
            returns[i], lengths[i] = 0, 0
    assert n_games >= 2
    assert (n_dones > n_games) == terminal_on_life_loss


@pytest.mark.parametrize("game", ["amidar", further("gravitar")])
def test_no_lives_are_left_at_game_over_wherever_the_counter_was(game: str) -> None:
    env = started(game, 2, seed=0)
    before = [0, 0]
    for _, _, _, infos in play(env, 2000):
        over = [i for i in range(2) if "episode" in infos[i]]
        if over:
            break
        before = [info["lives"] for info in infos]
    assert [infos[i]["lives"] for i in over] == [0]
    assert before[over[0]] > 1
    assert not infos[over[0]]["TimeLimit.truncated"]


def test_rewards_are_clipped_for_the_learner_only() -> None:
    returns: dict[bool, list[float]] = {}
    sums = {}
    for clip_reward in (True, False):
        env = started(
            "space_invaders", 1, seed=0, clip_reward=clip_reward, max_frames_per_episode=600
        )
        steps = list(play(env, 160))
        ends = [t for t, step in enumerate(steps) if "episode" in step[3][0]]
        returns[clip_reward] = [steps[t][3][0]["episode"]["r"] for t in ends]
        sums[clip_reward] = float(sum(step[1][0] for step in steps[: ends[0] + 1]))
        assert set(np.unique([step[1][0] for step in steps])) <= {0.0, 1.0} or not clip_reward
    assert returns[True] == returns[False]
    assert sums[False] == returns[False][0] >= 5 * sums[True] > 0


def test_truncation_is_reported_as_a_time_limit_even_for_very_short_games() -> None:
    env = make_atari_vec_env("pong", n_envs=4, seed=0, max_frames_per_episode=8)
    last_seen = env.reset()
    n_truncated = 0
    for t, (observations, _, dones, infos) in enumerate(play(env, 20), start=1):
        assert dones.all() == dones.any() == (t % 2 == 0)
        for i in np.flatnonzero(dones):
            n_truncated += 1
            assert infos[i]["TimeLimit.truncated"]
            assert infos[i]["episode"]["l"] == 2
            # One step before the restart three of the four images were the newest three.
            previous = infos[i]["terminal_observation"]
            np.testing.assert_array_equal(previous[:3], last_seen[i][1:])
            assert not np.shares_memory(previous, observations)
        last_seen = observations
    assert n_truncated == 40


def test_truncation_keeps_the_lives_of_the_game_that_ended() -> None:
    env = started("breakout", 1, seed=0, max_frames_per_episode=200, noop_max=0)
    infos = [step[3][0] for step in play(env, 50)]
    truncated = infos[49]
    assert truncated["TimeLimit.truncated"]
    assert truncated["lives"] == infos[48]["lives"] < 5
    assert env.reset_infos == [{"lives": 5}]


def test_same_seed_same_trajectory_and_envs_differ() -> None:
    first, again = trajectory(seed=7, n_envs=2), trajectory(seed=7, n_envs=2)
    np.testing.assert_array_equal(first, again)
    assert (first != trajectory(seed=8, n_envs=2)).any()
    # Seed 7's second game and seed 8's first play the same noops (SB3: seed + index).
    np.testing.assert_array_equal(first[0, 1], trajectory(n_steps=1, seed=8, n_envs=2)[0, 0])
    starts = trajectory(n_steps=0, seed=7, n_envs=8, noop_max=200)[0]
    assert len({image.tobytes() for image in starts}) > 1


@pytest.mark.thorough
def test_seed_method_is_applied_at_the_next_reset_only() -> None:
    env = make_atari_vec_env("breakout", n_envs=2)
    assert env.seed(5) == [5, 6]
    first = np.stack([env.reset(), *(step[0] for step in play(env, 30))])
    np.testing.assert_array_equal(first, trajectory(30, seed=5, n_envs=2))
    assert env._seeds == [None, None]
    env.seed(2**32 - 1)  # SB3 draws such seeds itself; the emulator takes 31 bits
    env.reset()


@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [None, further(3)])
def test_trajectories_do_not_depend_on_the_number_of_threads(n_threads: int | None) -> None:
    kwargs: dict[str, Any] = {"n_envs": 4, "seed": 3, "repeat_action_probability": 0.25}
    one = trajectory(n_threads=1, **kwargs)
    np.testing.assert_array_equal(one, trajectory(n_threads=n_threads, **kwargs))


def test_sticky_actions_change_the_game() -> None:
    kwargs: dict[str, Any] = {"n_envs": 1, "seed": 3}
    sticky = trajectory(repeat_action_probability=0.9, **kwargs)
    assert (trajectory(**kwargs) != sticky).any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_envs": 0}, ValueError, "Expected `n_envs`"),
        ({"n_envs": 2.0}, TypeError, "Expected `n_envs` to be an integer, got 2.0"),
        ({"n_envs": "8"}, TypeError, "Expected `n_envs`"),
        ({"seed": -1}, ValueError, "Expected `seed`"),
        ({"frame_stack": 0}, ValueError, "Expected `frame_stack`"),
        ({"frame_skip": 0}, ValueError, "Expected `frame_skip`"),
        ({"noop_max": -1}, ValueError, "Expected `noop_max`"),
        ({"n_threads": 0}, ValueError, "Expected `n_threads`"),
        ({"max_frames_per_episode": 0}, ValueError, "Expected `max_frames_per_episode`"),
        ({"max_frames_per_episode": 2**31}, ValueError, "and <= 2147483647, got 2147483648"),
        ({"n_threads": 2**40}, ValueError, "Expected `n_threads`"),
        ({"noop_max": 2**31}, ValueError, "Expected `noop_max`"),
        ({"clip_reward": "no"}, TypeError, "Expected `clip_reward` to be True or False, got 'no'"),
        ({"terminal_on_life_loss": 1}, TypeError, "Expected `terminal_on_life_loss`"),
        ({"full_action_space": None}, TypeError, "Expected `full_action_space`"),
        ({"repeat_action_probability": 1.5}, ValueError, "Expected `repeat_action_probability`"),
        ({"game": "pnog"}, ValueError, "Did you mean 'pong'"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make_atari_vec_env(**{"game": "pong", **arguments})


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        ([0, 6], ValueError, "Expected `actions` in 0..5"),
        ([-1, 0], ValueError, "Expected `actions` in 0..5"),
        ([0], ValueError, "Expected `actions` of shape (2,), got (1,)"),
        ([0.0, 1.0], TypeError, "Expected `actions` to be integers"),
    ],
)
def test_wrong_actions_are_refused_and_the_next_step_works(
    actions: list[float], error: type[Exception], message: str
) -> None:
    env = started("pong", n_envs=2)
    with pytest.raises(error, match=re.escape(message)):
        env.step(np.array(actions))
    assert env.step(np.array([0, 5]))[1].shape == (2,)


def test_steps_out_of_order_are_refused() -> None:
    env = make_atari_vec_env("pong", n_envs=1)
    action = np.array([0])
    with pytest.raises(RuntimeError, match=r"Expected `reset\(\)` before the first step"):
        env.step(action)
    env.reset()
    with pytest.raises(RuntimeError, match=r"Expected `step_async\(\)` before"):
        env.step_wait()
    env.step_async(action)
    with pytest.raises(RuntimeError, match=r"Expected `step_wait\(\)` before"):
        env.step_async(action)
    env.seed(4)  # reset cancels the pending step, whose result must not come up later
    after_reset = [env.reset(), *(step[0] for step in play(env, 5))]
    fresh = make_atari_vec_env("pong", n_envs=1, seed=4)
    expected = [fresh.reset(), *(step[0] for step in play(fresh, 5))]
    np.testing.assert_array_equal(after_reset, expected)


def test_close_is_idempotent_and_final() -> None:
    env = started("pong", n_envs=1)
    env.close()
    env.close()
    for call in (env.reset, env.step_wait, lambda: env.step(np.array([0]))):
        with pytest.raises(RuntimeError, match=r"`close\(\)` was called"):
            call()


def test_attributes_methods_and_wrappers() -> None:
    env = make_atari_vec_env("ms-pacman", n_envs=2)
    assert env.render_mode is None
    assert env.get_images() == [None, None]
    assert env.get_attr("render_mode") == [None, None]
    assert env.get_attr("game", indices=1) == ["ms_pacman"]
    assert not env.has_attr("split")
    with pytest.raises(AttributeError, match="have no attribute 'spec'"):
        env.get_attr("spec")
    with pytest.raises(AttributeError, match=r"take no attribute 'game'\. Pass settings to"):
        env.set_attr("game", "pong")
    with pytest.raises(AttributeError, match="have no method 'action_masks'"):
        env.env_method("action_masks")
    assert env.env_is_wrapped(Monitor) == [True, True]
    assert env.env_is_wrapped(gymnasium.wrappers.TimeLimit, indices=[0]) == [False]


def small_ppo(env: Any) -> PPO:
    kwargs = {"features_extractor_kwargs": {"features_dim": 16}}
    return PPO("CnnPolicy", env, n_steps=8, batch_size=16, n_epochs=1, policy_kwargs=kwargs)


def test_ppo_learns_and_sees_raw_returns_of_whole_games() -> None:
    env = make_atari_vec_env("space_invaders", 2, seed=0, max_frames_per_episode=120)
    model = small_ppo(env).learn(96)
    assert model.num_timesteps == 96
    episodes = list(model.ep_info_buffer or [])
    assert [episode["l"] for episode in episodes] == [30, 30]
    assert all(float(episode["r"]).is_integer() for episode in episodes)


def test_evaluate_policy_takes_returns_of_whole_games() -> None:
    env = make_atari_vec_env("breakout", 2, seed=0, max_frames_per_episode=400)
    model = small_ppo(env)
    returns, lengths = evaluate_policy(model, env, n_eval_episodes=2, return_episode_rewards=True)
    assert lengths == [100, 100], "each game, not each life"
    assert isinstance(returns, list)


def test_sb3_wrappers_work_on_top() -> None:
    env = make_atari_vec_env("pong", 2, seed=0, max_frames_per_episode=8)
    with pytest.warns(UserWarning, match="already wrapped"):
        monitored = VecMonitor(env)
    wrapped = VecNormalize(monitored, norm_obs=False)
    wrapped.reset()
    wrapped.step(np.array([0, 1]))
    _, rewards, dones, infos = wrapped.step(np.array([0, 1]))
    assert dones.all()
    assert rewards.shape == (2,)
    assert infos[0]["episode"]["l"] == 2
    wrapped.close()
