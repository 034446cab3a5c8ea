"""`rl-infonce train --env` on environments that are no Atari games."""

import csv
import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

from rl_infonce.cli import main, make_parser
from rl_infonce.cli.train import _verdict, run
from rl_infonce.runs.checkpoints import latest_checkpoint
from rl_infonce.runs.run_directory import read_record, write_record
from rl_infonce.training import run_model
from rl_infonce.training.rl_zoo import ALGORITHMS
from tests.cli.running import AtStep, ctrl_c, errors_of, output_of, refusal, rows_of, state_of
from tests.environments.worlds import CONTINUOUS, IMAGES, TEXT, TEXT_BESIDE, VECTOR
from tests.files.test_state_file import assert_same
from tests.full_disk import no_room
from tests.further import further, with_further
from tests.sb3.worlds import N_STEPS, VECTOR_ALGORITHMS, policy_kwargs

os.environ.setdefault("MUJOCO_GL", "egl")  # read once, when dm_control is imported


def words(folder: Path, env: str, *flags: str) -> list[str]:
    small = ("--n-pairs", "8", "--seed", "0", "--device", "cpu", "--num-threads", "1")
    where = () if "--run-dir" in flags else ("-f", str(folder))
    return ["train", "--env", env, *small, *where, "--no-progress", *flags]


@pytest.mark.parametrize(
    ("settings", "n_steps", "found"),
    [
        ({}, 4 * N_STEPS, r"InfoNCE: loss \d\.\d\d nats, chance \d\.\d\d; \d+% of futures found, "),
        (
            {"objective": "self_prediction"},
            4 * N_STEPS,
            r"Loss without negatives: 0\.\d\d; by the ",
        ),
        ({}, 1, r"InfoNCE: no update was made: too few steps"),
        ({"infonce_coef": 0.0}, 4 * N_STEPS, "$"),
    ],
)
def test_the_end_says_what_the_loss_found_on_vectors(
    settings: dict[str, Any], n_steps: int, found: str
) -> None:
    words = _verdict(VECTOR_ALGORITHMS["PPO"](policy_kwargs(**settings)).learn(n_steps))
    assert re.match(found, words)
    floors = r" of futures found, raw observations \d+%, random encoder \d+%\n"
    assert bool(re.search(floors, words)) == ("%" in words)


@pytest.mark.parametrize("spelling", ["ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4", "ms pacman"])
def test_an_atari_spelling_of_env_is_a_game_as_ever(spelling: str) -> None:
    flags = make_parser().parse_args(["train", "--env", spelling])
    assert (flags.game, flags.env) == ("ms_pacman", None)
    assert flags.given == {"command", "game"}
    other = make_parser().parse_args(["train", "--env", IMAGES])
    assert (other.game, other.env) == (None, IMAGES)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", "HalfCheeta-v5"], "Did you mean 'HalfCheetah-v5'"),
        (["--env", "breakuot"], "Did you mean 'breakout'"),
        (["--env", "pong", "--algo", "sac"], "These do: ppo, a2c"),
        (["--game", "pong", "--env", "CartPole-v1"], "--env: not allowed with argument --game"),
        (["--game", "pong", "--normalize"], "`--normalize` with --env alone"),
        (["--env", "FrozenLake-v1"], "observations of FrozenLake-v1 to be numbers"),
        (["--env", "Pendulum-v1", "--n-envs", "0"], "`--n-envs` to be a finite number >= 1, got 0"),
        (["--env", "Blackjack-v1"], "observations of Blackjack-v1 to be numbers"),
        (["--env", TEXT], f"observations of {TEXT} to be arrays of one size, or a "),
        (["--env", TEXT_BESIDE], "or a dictionary of them, got Text("),
        (["--env", "Pendulum-v1", "--decoupled"], "by isolated=False (--no-isolated)."),
        (["--game", "CartPole-v1"], "Did you mean --env CartPole-v1?"),
        (["--env", CONTINUOUS, "--n-steps", "8"], "Did you mean --hyperparams n_steps:VALUE?"),
        (["--env", CONTINUOUS, "--gamma=0.9"], "Did you mean --hyperparams gamma:VALUE?"),
        (["--env", IMAGES, "--algo", "ppo_mask", "--hyperparams", "a:1"], "`hyperparameter`"),
    ],
)
def test_what_does_not_fit_exits_2(tmp_path: Path, flags: list[str], message: str) -> None:
    said = refusal("train", *flags, "-f", str(tmp_path / "logs"), "--device", "cpu")
    assert message in said.splitlines()[-1]
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("flags", "is_noted"),
    [
        (("--infonce-coef", "1"), True),
        (("--infonce-coef", "0"), False),
        (("--infonce-coef", "1", "--no-isolated"), False),
        ((), False),
    ],
)
def test_a_weight_that_changes_nothing_is_noted(
    flags: tuple[str, ...], is_noted: bool, tmp_path: Path
) -> None:
    said = output_of(*words(tmp_path, VECTOR, "-n", "32", *ON_POLICY, *flags))
    assert ("Note: --infonce-coef 1 trains as every value above 0" in said) == is_noted


OFF_POLICY = ("--hyperparams", "learning_starts:20", "batch_size:16")
ON_POLICY = ("--n-envs", "2", "--hyperparams", "n_steps:16")


@pytest.mark.slow
@pytest.mark.parametrize(
    "algo", with_further(ALGORITHMS, ("a2c", "td3", "qrdqn", "tqc", "ppo_mask"))
)
def test_every_algorithm_trains_a_vector_environment_with_the_loss(
    algo: str, tmp_path: Path
) -> None:
    is_continuous = algo in ("sac", "td3", "tqc", "crossq")
    env = "Pendulum-v1" if is_continuous else VECTOR
    sizes = OFF_POLICY if is_continuous or algo in ("dqn", "qrdqn") else ON_POLICY
    assert main(words(tmp_path, env, "--algo", algo, "-n", "64", *sizes)) == 0
    (run_dir,) = (tmp_path / algo).iterdir()
    assert read_record(run_dir)["n_timesteps_done"] == 64
    losses = [float(row["infonce/loss"] or 0) for row in rows_of(run_dir)]
    assert max(losses) > 0
    with (run_dir / "progress.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert last["time/total_timesteps"] == "64", "the last update's curves stand beside the step"


SAC = ("--hyperparams", "learning_starts:60", "batch_size:16", "train_freq:4")
PPO = ("--n-envs", "2", "--hyperparams", "n_steps:16", "n_epochs:2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env", "first_step", "sizes"),
    [
        further("sac", CONTINUOUS, 96, SAC),
        ("a2c", IMAGES, 64, ("--n-envs", "2", "--hyperparams", "n_steps:16")),
        ("sac", "HalfCheetah-v5", 96, SAC),
        further("sac", "HalfCheetah-v5", 96, (*SAC, "--infonce-coef", "0")),
        further("sac", "Hopper-v5", 96, (*SAC, "--no-isolated")),
        further("ppo", "Walker2d-v5", 64, PPO),
        further("sac", "dm_control/cartpole-swingup-v0", 96, SAC),
    ],
)
def test_a_run_that_was_killed_goes_on_exactly(
    tmp_path: Path, algo: str, env: str, first_step: int, sizes: tuple[str, ...]
) -> None:
    if env.startswith("dm_control"):
        pytest.importorskip("dm_control")
    name = env.rpartition(":")[2].replace("/", "-")
    flags = ("--algo", algo, "-n", "112", "--save-freq", "48", "--normalize", *sizes)
    assert main(words(tmp_path / "whole", env, *flags)) == 0
    whole = tmp_path / "whole" / algo / f"{name}_1"
    record = read_record(whole)
    assert (record["arguments"]["env"], record["arguments"]["game"]) == (env, None)
    assert record["arguments"]["normalize"] is True
    stopped = tmp_path / "stopped"
    begun = make_parser().parse_args(words(tmp_path, env, *flags, "--run-dir", str(stopped)))
    assert run(begun, AtStep(104, ctrl_c)) == 130
    said = output_of("train", "--resume", str(stopped), "--no-progress")
    assert f"Resuming at step {first_step}: {algo.upper()} on {env}" in said
    assert_same(state_of(stopped), state_of(whole))
    for table in ("progress.csv", "episodes.csv"):
        assert rows_of(stopped, table) == rows_of(whole, table)
    said = refusal("train", "--run-dir", str(stopped), "--no-normalize")
    assert "normalize is False (was True)" in said


@pytest.mark.slow
def test_a_run_that_ended_before_its_first_checkpoint_keeps_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, curves = tmp_path / "run", tmp_path / "curves"
    given = words(tmp_path, CONTINUOUS, "-n", "64", "--n-envs", "1", "--run-dir", str(run_dir))
    given += ["--hyperparams", "n_steps:16", "--tensorboard-log", str(curves)]
    assert run(make_parser().parse_args(given), AtStep(40, ctrl_c)) == 130
    said = capsys.readouterr().out
    assert f"  rl-infonce train --resume {run_dir} --tensorboard-log {curves}\n" in said
    model = (run_dir / "model.zip").read_bytes()
    repeated = [
        "--n-pairs",
        "8",
        "--temperature",
        str(read_record(run_dir)["sessions"][0]["loss"]["temperature"]),
    ]
    assert main(["train", "--run-dir", str(run_dir), "--no-progress", *repeated]) == 0
    kept = run_dir / "model_40.zip"
    assert kept.read_bytes() == model
    assert f"begins anew; {kept} is its model." in capsys.readouterr().err
    assert (run_dir / "model.zip").read_bytes() != model


@pytest.mark.slow
def test_a_changed_default_of_the_loss_is_no_silent_change(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    sizes = ("-n", "32", "--n-envs", "1", "--run-dir", str(run_dir), "--hyperparams", "n_steps:16")
    assert main(words(tmp_path, CONTINUOUS, *sizes)) == 0
    record = read_record(run_dir)
    usual = record["sessions"][0]["loss"].pop("temperature")  # as of a version without it
    record["sessions"][0]["loss"]["critic"] = "cosine_of_then"
    record["sessions"][0]["loss"]["former_setting"] = 1
    record["sessions"].append({"first_step": 32, "loss": {}})  # killed before it saved anything
    write_record(run_dir, {**record, "status": "running"})
    again = ("train", "--resume", str(run_dir), "--no-progress", "-n", "64")
    said = errors_of(*again)
    assert "got other defaults: critic is 'cosine' (was 'cosine_of_then'). Go on with" in said
    assert read_record(run_dir)["status"] == "running"
    assert main([*again, "--resume-inexact"]) == 0
    assert not latest_checkpoint(run_dir / "checkpoints").about["is_exact"]
    assert read_record(run_dir)["sessions"][-1]["loss"]["temperature"] == usual
    assert main([*again, "-n", "80"]) == 0


@pytest.mark.slow
def test_a_model_that_finds_no_room_at_all_leaves_an_interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_given: no_room())
    monkeypatch.setattr(run_model, "replace_bytes", no_room)
    sizes = ("-n", "16", "--n-envs", "1", "--run-dir", str(run_dir), "--hyperparams", "n_steps:16")
    assert main(words(tmp_path, CONTINUOUS, *sizes)) == 1
    said = capsys.readouterr()
    assert "It could not be written there: [Errno 28]" in said.err
    assert "Model:  none, as it could not be written" in said.out
    assert read_record(run_dir)["status"] == "interrupted"


@pytest.mark.slow
def test_an_environment_that_cannot_be_closed_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DummyVecEnv, "close", no_room)
    run_dir = tmp_path / "run"
    sizes = ("-n", "16", "--n-envs", "1", "--run-dir", str(run_dir), "--hyperparams", "n_steps:16")
    with pytest.warns(UserWarning, match=r"could not be closed: OSError: \[Errno 28\]"):
        assert main(words(tmp_path, CONTINUOUS, *sizes)) == 0
    assert read_record(run_dir)["status"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env", "given", "n_flags"),
    [
        ("trpo", IMAGES, (), 1),
        ("trpo", CONTINUOUS, ("--isolated",), 1),
        ("trpo", CONTINUOUS, ("--decoupled",), 0),
        ("ppo", IMAGES, (), 0),
    ],
)
def test_the_counterpart_of_a_baseline_can_be_trained(
    tmp_path: Path, algo: str, env: str, given: tuple[str, ...], n_flags: int
) -> None:
    sizes = ("--algo", algo, "-n", "16", "--n-envs", "1", "--hyperparams", "n_steps:16")
    said = output_of(*words(tmp_path, env, *sizes, "--infonce-coef", "0", *given))
    (line,) = re.findall(r"  rl-infonce (train .*)  # with InfoNCE\n", said)
    assert line.split().count("--isolated") == n_flags
    assert main([*shlex.split(line), "--no-progress"]) == 0
