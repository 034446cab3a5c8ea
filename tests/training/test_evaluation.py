"""Agents of runs are built as they were trained, and play elsewhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium.spaces import Discrete
from stable_baselines3.common.evaluation import evaluate_policy

from rl_infonce import make_atari_vec_env
from rl_infonce.agents.episodes import RecurrentPlayer
from rl_infonce.agents.saved_agent import open_policy
from rl_infonce.agents.saved_policy import RecurrentPolicyError
from rl_infonce.runs.run_directory import new_record, write_record
from rl_infonce.training.algorithms import algorithm_class
from rl_infonce.training.evaluation import EvaluationPlan, evaluate_game, evaluate_run
from rl_infonce.training.plan import TrainingPlan
from rl_infonce.training.run_model import make_model
from tests.environments.worlds import IMAGES
from tests.further import further

GAME = "breakout"


def run_of(folder: Path, **settings: Any) -> Path:
    """Write a run whose agent has not learned anything, and return its folder."""
    given = {"seed": 0, "n_timesteps": 10, "device": "cpu", **settings}
    plan = TrainingPlan.of(given)
    model: Any = make_model(plan, None, n_timesteps=10)
    if plan.algo == "ppo_lstm":
        with torch.no_grad():  # images alone would hardly change its actions
            model.policy.lstm_actor.weight_hh_l0.normal_()
            model.policy.action_net.weight.normal_()
    model.save(folder / "model.zip")
    model.get_env().close()
    write_record(folder, new_record(plan.arguments(), seed=0))
    return folder


def how(run_dir: Path, task: str, **changes: Any) -> EvaluationPlan:
    """Return a plan to play two short episodes at once."""
    plan = EvaluationPlan(
        model=run_dir / "model.zip",
        run_dir=run_dir,
        task=task,
        is_game=task == GAME,
        n_episodes=2,
        n_envs=2,
        seed=3,
        deterministic=True,
        epsilon=None,
        max_frames=100,
    )
    return replace(plan, **changes)


def actions_of(state: Any) -> npt.NDArray[Any]:
    """Return the actions [T, N] in the state of a game's environments."""
    return np.asarray(state["history"][-1]["actions"])


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo_lstm", {"n_envs": 1}),
        further("qrdqn", {}),
        further("ppo", {"isolated": True, "n_envs": 1}),
    ],
)
def test_a_run_of_a_game_is_built_as_its_record_says(
    tmp_path: Path, algo: str, settings: dict[str, Any]
) -> None:
    run_dir = run_of(tmp_path, game=GAME, algo=algo, **settings)
    found = evaluate_game(how(run_dir, GAME))
    assert found.settings["clip_reward"] is found.settings["terminal_on_life_loss"] is False
    assert (found.settings["max_frames_per_episode"], found.settings["epsilon"]) == (100, 0.0)
    env = make_atari_vec_env(
        *(GAME, 2),
        seed=3,
        terminal_on_life_loss=False,
        clip_reward=False,
        max_frames_per_episode=100,
    )
    # SB3's own load, which executes the pickles of the file
    evaluate_policy(algorithm_class(algo).load(run_dir / "model.zip", device="cpu"), env, 2)
    assert found.game_state is not None
    actions = actions_of(found.game_state)
    np.testing.assert_array_equal(actions, actions_of(env.get_state()))
    assert algo != "ppo_lstm" or len(np.unique(actions)) > 1


class Counting:
    """A recurrent model that acts by its memory, in which it counts the steps of an episode."""

    action_space = Discrete(3)

    def predict(self, images: Any, state: Any, starts: Any, deterministic: bool) -> Any:
        steps = np.where(starts, 0, 0 if state is None else state + 1)
        return (steps if deterministic else steps + 1) % 3, steps


def played(epsilon: float, *, deterministic: bool) -> npt.NDArray[Any]:
    """Return the actions [5, 2] of a recurrent player whose second episode starts at step 3."""
    model: Any = Counting()
    rng = np.random.default_rng(0)
    player = RecurrentPlayer(model, epsilon, rng, deterministic=deterministic)
    starts = np.array([[1, 1], [0, 0], [0, 0], [0, 1], [0, 0]], bool)
    actions, state = [], None
    for each in starts:
        action, state = player.predict(np.zeros((2, 1)), state, each, deterministic=True)
        actions.append(action)
    return np.array(actions)


def test_a_recurrent_player_keeps_its_memory_until_an_episode_starts() -> None:
    expected = [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1]]
    np.testing.assert_array_equal(played(0.0, deterministic=True), expected)
    sampled = (np.array(expected) + 1) % 3
    np.testing.assert_array_equal(played(0.0, deterministic=False), sampled)
    assert (played(0.9, deterministic=True) != expected).any()


def test_the_code_of_a_recurrent_policy_is_not_executed_in_vain(tmp_path: Path) -> None:
    path = run_of(tmp_path, env=IMAGES, algo="ppo_lstm", n_envs=1) / "model.zip"
    for trust_pickle in (True, False):
        with pytest.raises(RecurrentPolicyError, match="from the directory of its run") as caught:
            open_policy(path, trust_pickle=trust_pickle)
        assert "--trust-pickle" not in str(caught.value)


def test_an_agent_is_built_with_the_environments_of_its_training(tmp_path: Path) -> None:
    # with 8 environments PPO has rollouts of 256 steps, and refuses this horizon
    settings = {"horizons": [300], "n_envs": 1}
    run_dir = run_of(tmp_path, env="CartPole-v1", **settings)
    found = evaluate_run(how(run_dir, "CartPole-v1", n_episodes=8, n_envs=8))
    assert [episode.env for episode in found.episodes] != [0] * 8
    assert len(found.episodes) == 8


def test_fewer_environments_than_in_training_truncate_no_minibatch(tmp_path: Path) -> None:
    settings = {"hyperparams": ["n_steps:16", "batch_size:32"], "n_envs": 2}
    run_dir = run_of(tmp_path, env="CartPole-v1", **settings)
    assert len(evaluate_run(how(run_dir, "CartPole-v1", n_envs=1)).episodes) == 2


@pytest.mark.parametrize(
    ("settings", "trained_on"),
    [({"game": GAME}, GAME), ({"env": "Acrobot-v1"}, "Acrobot-v1")],
)
@pytest.mark.atari
def test_another_environment_must_look_like_that_of_the_run(
    tmp_path: Path, settings: dict[str, Any], trained_on: str
) -> None:
    run_dir = run_of(tmp_path, n_envs=1, **settings)
    message = f"`--env` with the observations and actions of {trained_on}, .* got CartPole-v1"
    with pytest.raises(ValueError, match=message):
        evaluate_run(how(run_dir, "CartPole-v1"))
