"""`rl-infonce evaluate` from flags to scores, on short games."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stable_baselines3 import DQN

from rl_infonce.agents import episodes
from rl_infonce.cli import main, make_parser
from rl_infonce.cli.evaluate import _print_scores
from rl_infonce.runs.checkpoints import write_checkpoint
from rl_infonce.runs.evaluation_file import read_evaluation
from rl_infonce.runs.run_directory import new_record, write_record
from rl_infonce.training.evaluation import Evaluation, EvaluationPlan
from tests.agents.models import EXPLORATION, OwnCNN, save_model
from tests.cli.running import ctrl_c, errors_of, output_of, refusal
from tests.further import further

pytestmark = pytest.mark.atari


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ppo.zip, dqn.zip, own.zip and a run, breakout_1, with a best model."""
    folder = tmp_path_factory.mktemp("models")
    kwargs: dict[str, Any] = {"n_actions": 4, "net_arch": []}
    save_model(folder / "ppo.zip", **kwargs)
    save_model(folder / "dqn.zip", DQN, **kwargs)
    save_model(folder / "own.zip", extractor=OwnCNN, **kwargs)
    run_dir = folder / "breakout_1"
    run_dir.mkdir()
    write_record(run_dir, new_record({"game": "breakout"}, seed=0))
    save_model(run_dir / "model.zip", **kwargs)
    best = save_model(folder / "best.zip", seed=1, **kwargs).read_bytes()
    files = {"model.zip": best}
    write_checkpoint(run_dir / "checkpoints" / "best", 12, files, {"mean_return": 2.0})
    return folder


def command(model: Path, *flags: str) -> list[str]:
    budget = ("--n-episodes", "3", "--n-envs", "2", "--max-frames", "400", "--no-progress")
    return ["evaluate", "--model", str(model), *budget, *flags]


def evaluate(model: Path, *flags: str) -> int:
    return main(command(model, *flags))


def test_defaults_are_those_of_the_zoo_for_atari() -> None:
    flags = make_parser().parse_args(["evaluate", "--model", "logs/ppo/pong_1"])
    assert (flags.deterministic, flags.epsilon, flags.best) == (False, None, False)
    assert (flags.n_episodes, flags.n_envs, flags.seed, flags.max_frames) == (10, 8, 0, 108_000)
    flags = make_parser().parse_args(["evaluate", "--model", "m.zip", "--deterministic"])
    assert flags.deterministic


@pytest.mark.slow
def test_a_run_is_played_printed_and_written(models: Path, tmp_path: Path) -> None:
    files = ("-o", str(tmp_path / "scores.json"), "--video", str(tmp_path / "game.gif"))
    printed = output_of(*command(models / "breakout_1", *files))
    found = read_evaluation(tmp_path / "scores.json")
    returns = [episode["return"] for episode in found["episodes"]]
    error = np.std(returns, ddof=1) / 3**0.5
    assert f"Mean return {np.mean(returns):.2f} +- {error:.2f} (standard error)" in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith("   ")]
    assert [(float(row[1]), int(row[2])) for row in rows] == [
        (episode["return"], episode["length"]) for episode in found["episodes"]
    ]
    assert found["game"] == "breakout"
    assert found["model"]["path"] == str(models / "breakout_1" / "model.zip")
    assert found["versions"]["rl_infonce"]
    settings = found["settings"]
    assert (settings["n_episodes"], settings["n_envs"], settings["seed"]) == (3, 2, 0)
    assert (settings["deterministic"], settings["epsilon"]) == (False, 0.0)
    assert (settings["clip_reward"], settings["terminal_on_life_loss"]) == (False, False)
    assert settings["max_frames_per_episode"] == 400
    with Image.open(tmp_path / "game.gif") as video:
        n_frames = sum(_durations(video)) / 70  # equal images in a row are one that lasts longer
        assert n_frames - 1 in [episode["length"] for episode in found["episodes"]]
        assert video.size == (160, 210)


def _durations(video: Any) -> list[int]:
    durations = []
    for i in range(video.n_frames):
        video.seek(i)
        durations.append(video.info["duration"])
    return durations


@pytest.mark.thorough
@pytest.mark.slow
def test_the_same_seed_gives_the_same_scores_and_another_others(
    models: Path, tmp_path: Path
) -> None:
    found = []
    for i, flags in enumerate((["--seed", "4"], ["--seed", "4"], ["--seed", "5"])):
        path = tmp_path / f"{i}.json"
        assert evaluate(models / "ppo", "--game", "Breakout", "-o", str(path), *flags) == 0
        found.append(json.loads(path.read_text())["episodes"])
    assert found[0] == found[1] != found[2]


def test_the_best_model_of_a_run_is_another(models: Path, tmp_path: Path) -> None:
    assert evaluate(models / "breakout_1", "--best", "-o", str(tmp_path / "e.json")) == 0
    path = read_evaluation(tmp_path / "e.json")["model"]["path"]
    assert path == str(models / "breakout_1" / "checkpoints/best/step_000000000012/model.zip")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "epsilon"),
    [([], EXPLORATION), further(["--deterministic"], 0.0), further(["--epsilon", "0.05"], 0.05)],
)
def test_dqn_explores_as_it_was_saved_unless_told(
    models: Path, tmp_path: Path, flags: list[str], epsilon: float
) -> None:
    path = tmp_path / "e.json"
    assert evaluate(models / "dqn.zip", "--game", "breakout", "-o", str(path), *flags) == 0
    assert read_evaluation(path)["settings"]["epsilon"] == epsilon


@pytest.mark.thorough
def test_games_that_never_end_are_cut_and_said(models: Path) -> None:
    printed = output_of(*command(models / "breakout_1", "--max-frames", "100", "--deterministic"))
    assert printed.count("  (cut)") == 3
    assert "3 of 3 games cut after 100 frames. The agent may wait for someth" in printed
    assert "may wait" not in output_of(*command(models / "breakout_1", "--max-frames", "100"))


def test_code_of_a_model_runs_only_when_trusted(models: Path) -> None:
    assert "OwnCNN" in errors_of(*command(models / "own.zip", "--game", "breakout"))
    with pytest.warns(UserWarning, match="The code in .* is being executed"):
        assert evaluate(models / "own.zip", "--game", "breakout", "--trust-pickle") == 0


def test_a_model_of_another_game_fails_with_one_line(models: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "e.json")
    (line,) = errors_of(*command(models / "ppo.zip", "--game", "pong", "-o", output)).splitlines()
    assert "model with 6 actions" in line
    assert not list(tmp_path.iterdir())


def test_a_run_of_another_game_is_warned_of(models: Path) -> None:
    with (
        pytest.warns(UserWarning, match="breakout_1 was trained on breakout, and plays demon_att"),
        pytest.raises(SystemExit),
    ):
        evaluate(models / "breakout_1", "--game", "demon_attack", "--n-envs", "0")


def test_ctrl_c_writes_nothing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "evaluate_policy", ctrl_c)
    said = errors_of(*command(models / "breakout_1", "-o", str(tmp_path / "e.json")), code=130)
    assert "nothing was written" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--n-episodes", "0"], "--n-episodes"),
        (["--n-envs", "0"], "--n-envs"),
        (["--seed", "-1"], "--seed"),
        (["--epsilon", "2"], "--epsilon"),
        (["--max-frames", "0"], "--max-frames"),
        (["--deterministic", "--stochastic"], "not allowed with"),
        (["--game", "breakuot"], "Did you mean 'breakout'"),
        (["--video", "game.avi"], r".gif or .mp4"),
        (["--video", "none/game.gif"], "folder"),
        (["-o", "none/e.json"], "folder"),
        (["-o", "breakout_1"], "`--output` to be a file, got the folder breakout_1. Name a"),
        (["-o", "breakout_1/run.json"], "`--output` does not replace it; name another"),
        (["-o", "ppo.zip"], "`--output` does not replace it; name another"),
        (["--model", "none"], "no such file"),
        (["--model", "ppo.zip"], "`--game`"),
        (["--model", "ppo.zip", "--best", "--game", "pong"], "--best"),
    ],
)
def test_wrong_usage_exits_2_with_the_reason(
    models: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    monkeypatch.chdir(models)
    said = refusal(*command(Path("breakout_1"), *flags))
    assert message in said.splitlines()[-1]


@pytest.mark.parametrize("flag", [("-o", "e.json"), ("--video", "game.gif")])
def test_a_folder_that_cannot_be_written_is_named_before_games_are_played(
    models: Path, monkeypatch: pytest.MonkeyPatch, flag: tuple[str, str]
) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.chdir(models)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    said = refusal(*command(Path("breakout_1"), *flag))
    assert f"got {models}: Permission denied. Name another." in said


def test_small_returns_are_not_printed_as_zero(capsys: pytest.CaptureFixture[str]) -> None:
    how: dict[str, Any] = {"n_episodes": 2, "n_envs": 1, "seed": 0, "max_frames": 8}
    how |= {"deterministic": False, "epsilon": None}
    plan = EvaluationPlan(Path("model.zip"), None, "Tiny-v0", is_game=False, **how)
    for returns, shown in (([0.001, 0.003], "0.002 +- 0.001 "), ([7.0, 9.0], "8.00 +- 1.00 ")):
        played = [episodes.Episode(0, score, 5, is_cut=False) for score in returns]
        _print_scores(Evaluation(plan, played, "", {}, 1.0))
        printed = capsys.readouterr().out
        assert f"Mean return {shown}(standard error)" in printed
        assert f"{returns[0]:9} {5:8d}" in printed
