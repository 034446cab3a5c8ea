"""`rl-infonce evaluate` of runs on environments that are no Atari games."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sb3_contrib.common.maskable import evaluation as maskable
from stable_baselines3.common.evaluation import evaluate_policy

from rl_infonce.agents.saved_statistics import load_statistics
from rl_infonce.cli import main
from rl_infonce.environments.make_vec_env import make_vec_env, normalized
from rl_infonce.runs.evaluation_file import read_evaluation
from rl_infonce.training.algorithms import algorithm_class
from tests.cli.running import errors_of, output_of, refusal
from tests.environments.worlds import CONTINUOUS, DICT, IMAGES
from tests.further import further

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This run cannot be resumed exactly"),
]


def trained(folder: Path, algo: str, env: str, *flags: str) -> Path:
    run_dir = folder / "run"
    short = ["n_steps:16", "n_epochs:1"] if algo.startswith("ppo") else ["learning_starts:30"]
    words = ["train", "--env", env, "--algo", algo, "--run-dir", str(run_dir), "-n", "64"]
    words += ["--n-envs", "1", "--n-pairs", "8", "--device", "cpu", "--seed", "0", "--no-progress"]
    assert main([*words, "--hyperparams", *short, *flags]) == 0
    return run_dir


def evaluated(run_dir: Path, *flags: str) -> dict[str, Any]:
    path = run_dir / "scores.json"
    words = ["evaluate", "--model", str(run_dir), "--n-episodes", "5", "--n-envs", "2"]
    assert main([*words, "--seed", "3", "--no-progress", "-o", str(path), *flags]) == 0
    return read_evaluation(path)


def played_by_sb3(run_dir: Path, algo: str, env: str, *, normalize: bool) -> list[float]:
    """Return what SB3's own load and evaluation say, which execute the pickles of the file."""
    played: Any = make_vec_env(env, 2, seed=3)
    if normalize:
        played = normalized(played, gamma=0.99)
        load_statistics(run_dir / "model.zip", played)
    model = algorithm_class(algo).load(run_dir / "model.zip", device="cpu")
    model.set_random_seed(3)
    played.seed(3)
    play: Any = maskable.evaluate_policy if algo == "ppo_mask" else evaluate_policy
    returns: list[float] = play(model, played, 5, return_episode_rewards=True)[0]
    return returns


@pytest.mark.parametrize(
    ("algo", "env", "normalize"),
    [
        further("sac", CONTINUOUS, True),
        further("tqc", "Pendulum-v1", True),
        ("ppo", "Pendulum-v1", False),
        ("ppo", DICT, True),
        further("ppo_mask", IMAGES, False),
        further("ppo_lstm", IMAGES, False),
        further("qrdqn", IMAGES, False),
    ],
)
def test_a_run_returns_what_its_agent_returns(
    tmp_path: Path, algo: str, env: str, normalize: bool
) -> None:
    run_dir = trained(tmp_path, algo, env, *(["--normalize"] if normalize else []))
    found = evaluated(run_dir)
    assert (found["game"], len(found["episodes"])) == (env, 5)
    assert found["settings"] == {"n_episodes": 5, "n_envs": 2, "seed": 3, "deterministic": True}
    returns = [episode["return"] for episode in found["episodes"]]
    assert returns == played_by_sb3(run_dir, algo, env, normalize=normalize)


def test_another_seed_or_a_sampled_policy_returns_something_else(tmp_path: Path) -> None:
    run_dir = trained(tmp_path, "ppo", CONTINUOUS)
    best = evaluated(run_dir)["episodes"]
    sampled = evaluated(run_dir, "--stochastic")
    assert sampled["settings"]["deterministic"] is False
    assert best != sampled["episodes"]
    assert evaluated(run_dir)["episodes"] == best
    deep = run_dir / "checkpoints" / "best" / "step_000000000064" / "model.zip"  # as `train` says
    deep.parent.mkdir(parents=True)
    shutil.copy(run_dir / "model.zip", deep)
    assert "Mean return" in output_of("evaluate", "--model", str(deep), "--no-progress")
    assert "Playing 1 episode with" in output_of(
        *("evaluate", "--model", str(run_dir / "model.zip"), "--n-episodes", "1", "--no-progress"),
        *("--env", CONTINUOUS),
    )


def test_what_cannot_be_played_is_refused(tmp_path: Path) -> None:
    run_dir = trained(tmp_path, "ppo", IMAGES, "--normalize")
    for flags, words in ((["--epsilon", "0.1"], "--epsilon"), (["--video", "x.gif"], "--video")):
        said = refusal("evaluate", "--model", str(run_dir), *flags)
        assert f"Expected {words} with Atari games alone" in said
    said = refusal("probe", "--game", "pong", "--features-of", str(run_dir))
    assert f"from a game's RAM, got {run_dir}, which was trained on {IMAGES}" in said
    other = shutil.copy(run_dir / "model.zip", tmp_path / "model.zip")
    said = refusal("evaluate", "--model", str(other), "--env", IMAGES)
    assert "the directory of a run with --env" in said
    said = errors_of("evaluate", "--model", str(run_dir), "--env", CONTINUOUS, "--no-progress")
    assert f"--env` with the observations and actions of {IMAGES}, on which the agent of" in said
    record = json.loads((run_dir / "run.json").read_text())
    assert record["arguments"]["normalize"] is True
    plain = trained(tmp_path / "plain", "ppo", IMAGES)
    shutil.copy(plain / "model.zip", run_dir / "model.zip")
    said = errors_of("evaluate", "--model", str(run_dir), "--no-progress")
    assert "with the statistics of VecNormalize, got none" in said
