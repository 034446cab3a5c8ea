"""Scores are those of whole games, in the game's own points."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.policies import BasePolicy

from rl_infonce import make_atari_vec_env
from rl_infonce.agents.episodes import Episode, play_episodes
from rl_infonce.agents.epsilon_greedy import EpsilonGreedyPolicy
from rl_infonce.agents.saved_agent import (
    env_of,
    find_model,
    game_of,
    open_policy,
    run_of,
    saved_exploration_rate,
)
from rl_infonce.agents.saved_extractor import NotRebuildableError
from rl_infonce.agents.saved_policy import SavedPolicyNetwork
from rl_infonce.runs.evaluation_file import evaluation_record, read_evaluation
from rl_infonce.runs.run_directory import new_record, write_record
from tests.agents.models import EXPLORATION, OwnCNN, save_model
from tests.further import further

GAME, N_ACTIONS = "ms_pacman", 9  # points beyond 1, and several lives


def uniform(n_actions: int = N_ACTIONS, seed: int = 0) -> EpsilonGreedyPolicy:
    rng = np.random.default_rng(seed)
    return EpsilonGreedyPolicy(
        lambda images: torch.zeros(len(images), n_actions),
        n_actions,
        1.0,
        rng,
        image_shape=(4, 84, 84),
        is_sampling=False,
    )


def by_hand(n_envs: int, n_games: int) -> list[list[tuple[float, int]]]:
    """Return score and length of the first games of each environment: rewards, added up."""
    env = make_atari_vec_env(GAME, n_envs, seed=3, clip_reward=False, terminal_on_life_loss=False)
    policy = uniform()
    observations: Any = env.reset()
    games: list[list[tuple[float, int]]] = [[] for _ in range(n_envs)]
    total, length = np.zeros(n_envs), np.zeros(n_envs, int)
    while min(map(len, games)) < n_games:
        observations, rewards, dones, _ = env.step(policy(observations))
        total, length = total + rewards, length + 1
        for i in np.flatnonzero(dones):
            games[i].append((float(total[i]), int(length[i])))
            total[i] = length[i] = 0
    return [each[:n_games] for each in games]


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.parametrize("training_settings", [True, further(False)])
def test_episodes_are_whole_games_in_raw_points(training_settings: bool) -> None:
    env = make_atari_vec_env(
        GAME,
        2,
        seed=3,
        clip_reward=training_settings,
        terminal_on_life_loss=training_settings,
    )
    shown: list[Episode] = []
    episodes = play_episodes(uniform(), env, 4, show=shown.append)
    assert shown == episodes
    for index, games in enumerate(by_hand(2, 2)):
        assert [(e.score, e.length) for e in episodes if e.env == index] == games
        assert all(score >= 60 for score, _ in games), "not a game's worth of points"
    assert not any(episode.is_cut for episode in episodes)


@pytest.mark.atari
def test_long_games_are_cut_and_say_so() -> None:
    env = make_atari_vec_env(GAME, 1, seed=0, max_frames_per_episode=200)
    episodes = play_episodes(uniform(), env, 2)
    assert [episode.is_cut for episode in episodes] == [True, True]
    assert all(40 <= episode.length <= 50 for episode in episodes)  # no-ops count, too


@pytest.mark.atari
def test_a_model_of_another_game_is_refused() -> None:
    env = make_atari_vec_env("pong", 1)
    with pytest.raises(ValueError, match=r"model with 6 actions, .*got a model with 9"):
        play_episodes(uniform(), env, 1)
    with pytest.raises(ValueError, match="n_episodes"):
        play_episodes(uniform(6), env, 0)
    with pytest.raises(TypeError, match=r"`n_episodes` to be an integer, got 2\.5"):
        play_episodes(uniform(6), env, 2.5)  # type: ignore[arg-type]


# -- saved agents -----------------------------------------------------------------------------


def test_models_are_found_by_file_name_and_run(tmp_path: Path) -> None:
    (tmp_path / "pong_1").mkdir()
    for path in (tmp_path / "pong_1" / "model.zip", tmp_path / "ppo.zip"):
        path.touch()
    assert find_model(tmp_path / "pong_1") == tmp_path / "pong_1" / "model.zip"
    assert find_model(tmp_path / "ppo") == find_model(tmp_path / "ppo.zip") == tmp_path / "ppo.zip"
    with pytest.raises(FileNotFoundError, match="no such file"):
        find_model(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"got the folder .*, which has none"):
        find_model(tmp_path)
    (tmp_path / "run.json").touch()
    with pytest.raises(FileNotFoundError, match=r"the run .* without a model.zip, .* --resume /"):
        find_model(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"best model in .*once 100 episodes"):
        find_model(tmp_path / "pong_1", best=True)
    with pytest.raises(ValueError, match="run directory with --best"):
        find_model(tmp_path / "ppo.zip", best=True)


def test_the_command_that_continues_a_run_can_be_pasted(tmp_path: Path) -> None:
    run_dir = tmp_path / "it's mine" / "run"
    run_dir.mkdir(parents=True)
    (run_dir / "run.json").touch()
    with pytest.raises(FileNotFoundError) as caught:
        find_model(run_dir)
    command = str(caught.value).partition("Continue the run: ")[2]
    assert shlex.split(command) == ["rl-infonce", "train", "--resume", str(run_dir)]


def test_a_run_names_its_game(tmp_path: Path) -> None:
    assert game_of(tmp_path) is None
    write_record(tmp_path, new_record({"game": "ms_pacman"}, seed=0))
    assert game_of(tmp_path) == game_of(tmp_path / "model.zip") == "ms_pacman"
    write_record(tmp_path, new_record({"game": 3}, seed=0))
    assert game_of(tmp_path) is None


@pytest.mark.parametrize(
    ("place", "is_of_run"),
    [
        ("model.zip", True),
        ("model_40.zip", True),
        ("checkpoints/step_000000000064/model.zip", True),
        ("checkpoints/best/step_000000000064/model.zip", True),
        ("checkpoints/step_000000000064", True),
        ("random", False),
        ("pong.safetensors", False),
        ("downloads/model.zip", False),
        ("downloads/a2c/pong/model.zip", False),
        ("downloads/step_1/model.zip", False),
    ],
)
def test_a_model_below_a_run_is_not_always_its_own(
    tmp_path: Path, place: str, is_of_run: bool
) -> None:
    write_record(tmp_path, new_record({"env": "CartPole-v1"}, seed=0))
    path = tmp_path / place
    if place.startswith("checkpoints"):
        file = path if path.suffix else path / "model.zip"
        file.parent.mkdir(parents=True)
        file.touch()
    assert run_of(path) == (tmp_path if is_of_run else None)
    assert env_of(path) == ("CartPole-v1" if is_of_run else None)


def test_a_record_of_other_software_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"name": "theirs"}')
    assert run_of(tmp_path / "model.zip") is None
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"Expected a record of a run in .*run\.json"):
        game_of(tmp_path / "model.zip")


def test_policies_are_opened_without_code_if_that_is_possible(tmp_path: Path) -> None:
    assert isinstance(open_policy(save_model(tmp_path / "ppo.zip")), SavedPolicyNetwork)
    own = save_model(tmp_path / "own.zip", extractor=OwnCNN)
    with pytest.raises(NotRebuildableError, match="OwnCNN"):
        open_policy(own)
    with pytest.warns(UserWarning, match="The code in .* is being executed"):
        assert isinstance(open_policy(own, trust_pickle=True), BasePolicy)


def test_the_exploration_of_a_dqn_is_read(tmp_path: Path) -> None:
    assert saved_exploration_rate(save_model(tmp_path / "dqn.zip", DQN)) == EXPLORATION
    assert saved_exploration_rate(save_model(tmp_path / "ppo.zip")) == 0.0


# -- the file ---------------------------------------------------------------------------------

EPISODES = [
    {"return": 1.0, "length": 10, "is_cut": False},
    {"return": 4.0, "length": 20, "is_cut": True},
]


def record(**changes: Any) -> dict[str, Any]:
    about = {"settings": {"seed": 0}, "versions": {"torch": "2"}}
    return evaluation_record("pong", EPISODES, **about) | changes


def test_a_record_says_mean_and_standard_error(tmp_path: Path) -> None:
    written = record()
    assert (written["mean_return"], written["mean_length"], written["n_cut"]) == (2.5, 15.0, 1)
    assert written["standard_error"] == pytest.approx(np.std([1, 4], ddof=1) / 2**0.5)
    assert evaluation_record("pong", EPISODES[:1])["standard_error"] is None
    (tmp_path / "e.json").write_text(json.dumps(written))
    assert read_evaluation(tmp_path / "e.json") == written


def test_the_mean_is_that_of_the_episodes_whatever_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(json.dumps(record(mean_return=21.0)))
    assert read_evaluation(tmp_path / "e.json")["mean_return"] == 2.5


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "scores"},
        {"format_version": 2},
        {"episodes": []},
        {"episodes": [{"return": "many"}]},
        {"episodes": {"return": 1}},
        {"episodes": [{**EPISODES[0], "return": "nan"}]},
        {"episodes": [{**EPISODES[0], "return": 10**400}]},
        {"episodes": [{**EPISODES[0], "return": 1e308}] * 2},
        {"episodes": [{**EPISODES[0], "length": 1.5}]},
        {"game": None},
        {"versions": []},
    ],
)
def test_other_json_is_no_evaluation(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "e.json").write_text(json.dumps(record(**changes)))
    with pytest.raises(ValueError, match=r"e.json to be written by `rl-infonce evaluate"):
        read_evaluation(tmp_path / "e.json")
