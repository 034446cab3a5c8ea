"""What begins anew: a count of steps, episodes of games that cannot be read, other settings."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import (
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from rl_infonce import ResumeCallback
from rl_infonce.runs.checkpoints import checkpoints, read_checkpoint
from tests.resuming.killing import KilledError, Killer

SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "seed": 0}


def steps_in(folder: Path) -> list[int]:
    return [read_checkpoint(path).step for path in checkpoints(folder)]


def ppo(n_envs: int = 1, **env_kwargs: Any) -> PPO:
    env = make_vec_env("Pendulum-v1", n_envs, seed=0, env_kwargs=env_kwargs)
    return PPO("MlpPolicy", env, **SMALL)


def resume(folder: Path) -> ResumeCallback:
    return ResumeCallback(folder, save_freq=30)


def test_a_second_count_of_steps_takes_the_place_of_the_first(tmp_path: Path) -> None:
    model, run = ppo(), resume(tmp_path)
    model.learn(192, callback=run)
    assert steps_in(tmp_path) == [192, 160]
    with pytest.raises(KilledError):
        model.learn(192, callback=[Killer(100), run])
    assert steps_in(tmp_path) == [96, 64]
    again = ppo()
    assert resume(tmp_path).restore(again)
    assert again.num_timesteps == 96


def test_a_forgotten_restore_replaces_no_checkpoint(tmp_path: Path) -> None:
    ppo().learn(64, callback=resume(tmp_path))
    with pytest.raises(ValueError, match=r"got one of step 64, .* Call restore\(model\)"):
        ppo().learn(64, callback=resume(tmp_path))
    assert steps_in(tmp_path)[0] == 64


def test_no_callback_that_tells_nothing_of_rollouts_may_hold_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every rollout, got it inside EveryNTimesteps"):
        ppo().learn(64, callback=EveryNTimesteps(64, resume(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"g": 5.0}, r"env\.0\.g is 5\.0 \(was None\)"),
        ({"max_episode_steps": 50}, r"env\.0\.max_episode_steps is 50 \(was 200\)"),
        ({"render_mode": "rgb_array"}, None),
    ],
)
def test_other_settings_of_the_environment_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str | None
) -> None:
    ppo().learn(64, callback=resume(tmp_path))
    if message is None:
        assert resume(tmp_path).restore(ppo(**changes))
        return
    with pytest.raises(ValueError, match=message):
        resume(tmp_path).restore(ppo(**changes))


def test_a_raised_number_of_episodes_holds(tmp_path: Path) -> None:
    def learn(n_steps: int, n_episodes: int) -> StopTrainingOnMaxEpisodes:
        model = PPO("MlpPolicy", make_vec_env("CartPole-v1", seed=0), **SMALL)
        run, stop = resume(tmp_path), StopTrainingOnMaxEpisodes(n_episodes)
        run.restore(model)
        model.learn(n_steps - model.num_timesteps, [stop, run], reset_num_timesteps=False)
        return stop

    n_former = learn(128, 100).n_episodes
    assert n_former > 1
    assert learn(1000, n_former + 2).n_episodes == n_former + 2


class Opaque(gym.Wrapper[Any, Any, Any, Any]):
    """A game of the user's, whose state cannot be read."""

    starts: list[float]

    def reset(self, **given: Any) -> Any:
        observation, info = super().reset(**given)
        self.starts.append(float(observation[0]))
        return observation, info


def opaque(
    starts: list[float], name: str = "CartPole-v1", *, seed: int | None = None
) -> DummyVecEnv:
    def make() -> gym.Env[Any, Any]:
        env = Opaque(gym.make(name))
        env.starts = starts
        return Monitor(env)

    games = DummyVecEnv([make])
    games.seed(seed)
    return games


@pytest.mark.filterwarnings("ignore:This run cannot be resumed exactly")
@pytest.mark.parametrize(("seed", "env_seed"), [(0, None), (None, 0)], ids=["model", "games"])
def test_every_session_has_other_episodes(
    tmp_path: Path, seed: int | None, env_seed: int | None
) -> None:
    seen: list[list[float]] = []
    for _ in range(3):
        starts: list[float] = []
        games = opaque(starts, seed=env_seed)
        model, run = PPO("MlpPolicy", games, **{**SMALL, "seed": seed}), resume(tmp_path)
        run.restore(model)
        model.learn(64, callback=run, reset_num_timesteps=False)
        seen.append(starts)
    assert len({each[0] for each in seen}) == 3


@pytest.mark.filterwarnings("ignore:This run cannot be resumed exactly")
@pytest.mark.parametrize(("is_lean", "n_steps"), [(False, 3), (True, 1)], ids=["n_step", "lean"])
def test_no_row_of_the_buffer_goes_on_in_another_episode(
    tmp_path: Path, is_lean: bool, n_steps: int
) -> None:
    def build() -> DQN:
        return DQN(
            *("MlpPolicy", opaque([], "MountainCar-v0")),
            learning_starts=10,
            buffer_size=1000,
            batch_size=8,
            seed=1,
            n_steps=n_steps,
            optimize_memory_usage=is_lean,
            replay_buffer_kwargs={"handle_timeout_termination": False} if is_lean else None,
        )

    build().learn(60, callback=resume(tmp_path))
    model, run = build(), resume(tmp_path)
    assert run.restore(model)
    assert model.replay_buffer is not None
    last = model.replay_buffer.pos - 1
    model.learn(60, callback=run, reset_num_timesteps=False)
    row = model.replay_buffer._get_samples(np.array([last]))
    moved = float((row.next_observations - row.observations)[0, 0].abs())
    assert bool(row.dones) or moved < 0.01, "the car moves little in a step"
    again = build()
    assert resume(tmp_path).restore(again), "rows that changed were written anew"


@pytest.mark.parametrize("changes", [{"n_envs": 2}, {"buffer_size": 200}, {"buffer_size": 50}])
def test_a_buffer_of_another_size_fills_anew(tmp_path: Path, changes: dict[str, int]) -> None:
    def build(n_envs: int = 1, buffer_size: int = 100) -> DQN:
        env = make_vec_env("CartPole-v1", n_envs, seed=0)
        sizes: dict[str, Any] = {"learning_starts": 10, "batch_size": 8, "seed": 1}
        return DQN("MlpPolicy", env, buffer_size=buffer_size, **sizes)

    build().learn(150, callback=resume(tmp_path))
    model, run = build(**changes), resume(tmp_path)
    with pytest.warns(UserWarning, match=r"updates go on at step 162.* actions are random"):
        assert run.restore(model, inexact=True)
    n_updates = model._n_updates
    model.learn(4, callback=run, reset_num_timesteps=False)
    model, run = build(**changes), resume(tmp_path)
    assert run.restore(model), "the settings are those of the script, and updates wait as before"
    assert (model.learning_starts, model._n_updates) == (162, n_updates)
    model.learn(30, callback=run, reset_num_timesteps=False)
    assert model._n_updates > n_updates
    assert resume(tmp_path).restore(build(**changes))


@pytest.mark.parametrize(
    ("settings", "is_exact"), [({}, True), ({"deterministic": False}, False)], ids=["best", "drawn"]
)
def test_an_evaluation_that_draws_from_torch_must_be_read(
    tmp_path: Path, settings: dict[str, Any], is_exact: bool
) -> None:
    model, run = PPO("MlpPolicy", "CartPole-v1", **SMALL), resume(tmp_path)
    evaluate = EvalCallback(opaque([]), eval_freq=50, n_eval_episodes=1, verbose=0, **settings)
    if is_exact:
        model.learn(64, callback=[evaluate, run])
    else:
        with pytest.warns(UserWarning, match=r"exactly: EvalCallback: .*Opaque"):
            model.learn(64, callback=[evaluate, run])
    assert run.is_exact is is_exact
