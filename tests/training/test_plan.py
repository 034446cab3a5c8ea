"""What a run that goes on takes from its record, and what from the flags."""

import argparse
import os
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.cli import make_parser
from rl_infonce.cli.train import given_settings, named_folder
from rl_infonce.runs.run_directory import hold_run, new_record, read_record, write_record
from rl_infonce.training.plan import (
    ENCODER,
    TrainingPlan,
    _are_equal,
    check_unused,
    new_run,
    planned,
)
from rl_infonce.training.run_state import check_tables
from rl_infonce.training.training_run import pretrained_file
from tests.cli.running import errors_of, output_of, refusal

pytestmark = pytest.mark.atari

SMALL = ("-n", "128", "--n-envs", "1", "--device", "cpu", "--n-pairs", "8", "--save-freq", "64")


def parse(*flags: str) -> argparse.Namespace:
    return make_parser().parse_args(["train", *flags])


def begun(run_dir: Path, *flags: str, **more: Any) -> Path:
    """Write the record of a run that was begun with flags."""
    record, _ = new_run(given_settings(parse("--game", "pong", "--seed", "3", *flags)))
    run_dir.mkdir(parents=True, exist_ok=True)
    write_record(run_dir, {**record, **more})
    return run_dir


def going_on(run_dir: Path, *flags: str) -> TrainingPlan:
    return planned(given_settings(parse(*flags)), run_dir, print)[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "`--env` or `--game`, or `--resume` with the folder"),
        (["--game", "pong", "--env", "CartPole-v1"], "not allowed with argument --game"),
        (["--resume", "nowhere"], "a run in nowhere, got no run.json"),
        (["--resume", "a", "--run-dir", "b"], "`--resume` or `--run-dir`, got both"),
        (["--run-dir", "a", "-f", "b"], "`--run-dir` without --log-folder, got b: the run lies"),
        (["--fall-back"], "`--fall-back` with --resume or --run-dir, got neither"),
        (["--resume-inexact", "-f", "b"], "`--resume-inexact` with --resume or --run-dir"),
        (["--resume", "x", "--n-envs", "4", "--on-nan", "stop"], "without --n-envs, --on-nan: the"),
    ],
)
def test_wrong_usage_exits_2(given: list[str], message: str) -> None:
    assert message in refusal("train", *given)


@pytest.mark.parametrize("flag", ["--resume", "--run-dir"])
def test_a_run_keeps_its_budget_until_it_is_given_another_one(tmp_path: Path, flag: str) -> None:
    run_dir = begun(tmp_path / "run", "-n", "1000000", "--save-freq", "7")
    arguments = going_on(run_dir, flag, str(run_dir))
    assert (arguments.n_timesteps, arguments.save_freq, arguments.n_envs) == (1_000_000, 7, 8)
    assert going_on(run_dir, flag, str(run_dir), "-n", "30000").n_timesteps == 30_000
    begun(run_dir, "-n", "100", sessions=[{"n_timesteps": 100}, {"n_timesteps": 900}])
    assert going_on(run_dir, flag, str(run_dir)).n_timesteps == 900


def test_the_extractor_gets_its_architecture_and_what_its_loss_is_told(tmp_path: Path) -> None:
    given = ("--encoder", "impala", "--preset", "atc", "--n-pairs", "8", "--decoupled")
    expected = {"encoder": "impala", "preset": "atc", "n_pairs": 8}
    run_dir = begun(tmp_path / "run", *given)
    assert going_on(run_dir, "--run-dir", str(run_dir)).of_extractor() == expected


def test_flags_that_are_not_given_are_those_of_the_run(tmp_path: Path) -> None:
    own = ("--infonce-coef", "0", "--hyperparams", "n_epochs:2", "--n-envs", "2")
    run_dir = begun(tmp_path / "run", *own)
    arguments = going_on(run_dir, "--run-dir", str(run_dir), "--game", "pong", "--n-envs", "2")
    assert (arguments.loss, arguments.hyperparams) == ({"infonce_coef": 0}, ["n_epochs:2"])
    assert (arguments.n_envs, arguments.seed) == (2, 3)
    for changed, words in (
        (("--infonce-coef", "0.1"), r"infonce_coef is 0.1 \(was 0.0\)"),
        (("--algo", "dqn"), r"algo is 'dqn' \(was 'ppo'\)"),
        (("--on-nan", "skip", "--seed", "4"), r"on_nan is 'skip' .*; seed is 4 \(was 3\)"),
    ):
        with pytest.raises(ValueError, match=rf"with the settings it has, got: {words}"):
            going_on(run_dir, "--run-dir", str(run_dir), *changed)


def test_hyperparameters_may_be_named_in_any_order(tmp_path: Path) -> None:
    run_dir = begun(tmp_path / "run", "--hyperparams", "n_epochs:5", "gamma:1.0")
    again = ("--run-dir", str(run_dir), "--hyperparams", "gamma:1")
    assert going_on(run_dir, *again, "n_epochs:5").hyperparams == ["n_epochs:5", "gamma:1.0"]
    for others in ([], ["n_epochs:6"], ["n_epochs:5", "ent_coef:0.1"]):
        with pytest.raises(ValueError, match=r"hyperparams is \['gamma:1'.*was \['n_epochs:5'"):
            going_on(run_dir, *again, *others)


def test_a_run_begun_with_a_tuple_goes_on_with_the_list_of_a_sweep(tmp_path: Path) -> None:
    word = "train_freq:(1, 'episode')"
    run_dir = begun(tmp_path / "run", "--algo", "dqn", "--hyperparams", word)
    again = ("--run-dir", str(run_dir), "--hyperparams")
    assert going_on(run_dir, *again, "train_freq:[1, 'episode']").hyperparams == [word]
    with pytest.raises(ValueError, match="hyperparams is"):
        going_on(run_dir, *again, "train_freq:[2, 'episode']")


def test_the_plan_has_the_defaults_of_the_flags() -> None:
    flags = vars(parse("--game", "pong"))
    usual = TrainingPlan(game="pong").flat()
    assert {name: flags[name] for name in usual} == usual


def test_a_record_does_not_say_where_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, outside = tmp_path / "run", tmp_path / "outside"
    begun(run_dir, "-tb", str(outside))
    assert going_on(run_dir, "--resume", str(run_dir)).tensorboard_log is None
    assert f"curves go to {run_dir / 'tb'} and not to {outside}" in capsys.readouterr().out
    again = going_on(run_dir, "--resume", str(run_dir), "-tb", str(outside))
    assert again.tensorboard_log == outside
    begun(run_dir, "-tb", str(run_dir / "curves"))
    assert going_on(run_dir, "--resume", str(run_dir)).tensorboard_log == run_dir / "curves"
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`game` or `env`, and `n_timesteps`, in the arguments of .*run.json"),
        ({"game": "pong"}, "and `n_timesteps`"),
        ({"game": "pong", "env": "CartPole-v1", "n_timesteps": 9}, "`game` or `env`"),
        ({"pretrained": 5}, "`pretrained` in .*run.json to be a path, got 5"),
        ({"algo": ["ppo"]}, "`algo` in .*run.json to be one of ppo, a2c, .*dqn"),
        ({"n_timesteps": "many"}, "`n_timesteps` in .*run.json to be an int"),
        ({"hyperparams": "n_epochs:2"}, "`hyperparams` in .*run.json to be a list of texts"),
    ],
)
def test_what_is_wrong_in_a_record_is_named(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    write_record(tmp_path, new_record(arguments, 0))
    with pytest.raises(ValueError, match=message):
        going_on(tmp_path, "--resume", str(tmp_path))


def test_of_a_record_known_settings_are_taken_alone(tmp_path: Path) -> None:
    write_record(
        tmp_path, new_record({"game": "pong", "n_timesteps": 9, "usage_error": 1, "run": 2}, 0)
    )
    arguments = going_on(tmp_path, "--resume", str(tmp_path))
    assert (arguments.algo, arguments.n_envs, arguments.pretrained) == ("ppo", 8, None)


@pytest.mark.parametrize("name", ["model.zip", "checkpoints/step_000000000064"])
def test_a_folder_with_a_model_of_somebody_is_no_place_for_a_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    said = refusal("train", "--game", "pong", "--run-dir", str(tmp_path), *SMALL)
    assert f"got {tmp_path / name} without run.json. Choose another folder." in said


@pytest.mark.parametrize("name", ["progress.csv", "episodes.csv", "encoder.safetensors"])
def test_what_somebody_else_wrote_there_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / "own").write_text("of mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("time/fps,rollout/ep_rew_mean\n120,3.5\n")
    flags = ["--pretrained", str(tmp_path / "own")] if name.startswith("encoder") else []
    said = refusal("train", "--game", "pong", "--run-dir", str(tmp_path / "run"), *flags, *SMALL)
    assert f"got {tmp_path / 'run' / name} without run.json. Choose another folder." in said


def test_a_run_killed_before_its_record_may_begin_again(tmp_path: Path) -> None:
    for name in ("progress.csv", "episodes.csv"):
        (tmp_path / name).write_text("step,return\n")
    check_unused(tmp_path, None)
    (tmp_path / "progress.csv").write_text("step,return\n1,2.0\n")
    with pytest.raises(ValueError, match=r"progress.csv without run.json"):
        check_unused(tmp_path, None)


@pytest.mark.parametrize(("content", "is_same"), [(b"weights", True), (b"others", False)])
def test_a_pretrained_encoder_may_have_moved(tmp_path: Path, content: bytes, is_same: bool) -> None:
    run_dir, moved = tmp_path / "run", tmp_path / "moved.safetensors"
    run_dir.mkdir()
    (run_dir / ENCODER).write_bytes(b"weights")
    moved.write_bytes(content)
    assert _are_equal("pretrained", moved, tmp_path / "gone.safetensors", run_dir) == is_same


def test_an_encoder_in_the_folder_of_a_run_that_was_given_none_is_not_its_own(
    tmp_path: Path,
) -> None:
    for name, flags in (("none", ()), ("own", ("--pretrained", "gone.safetensors"))):
        run_dir = begun(tmp_path / name, *flags)
        (run_dir / ENCODER).write_bytes(b"weights")
        copy = run_dir / ENCODER if flags else None
        assert pretrained_file(going_on(run_dir, "--resume", str(run_dir)), run_dir) == copy


def test_a_run_that_another_process_holds_is_left_alone(tmp_path: Path) -> None:
    with hold_run(tmp_path):
        said = refusal("train", "--game", "pong", "--run-dir", str(tmp_path), *SMALL)
        again = refusal("train", "--resume", str(begun(tmp_path)))
    for each in (said, again):
        assert f"alone, but process {os.getpid()} on" in each
        assert "Cannot write the logs" not in each


def test_a_script_may_say_how_to_go_on_before_there_is_a_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    again = ("--game", "pong", "--run-dir", str(run_dir), "--fall-back", "--resume-inexact")
    assert named_folder(parse(*again)) == run_dir


def test_resume_takes_a_budget_and_where_to_write_and_compute(tmp_path: Path) -> None:
    run_dir = begun(tmp_path / "run", "--device", "cuda", "--num-threads", "16")
    allowed = ("-n", "9", "--save-freq", "3", "-tb", "tb", "--fall-back", "--no-progress")
    here = ("--device", "auto", "--num-threads", "2")
    assert named_folder(parse("--resume", str(run_dir), *allowed, *here)) == run_dir
    for flag in ("--resume", "--run-dir"):
        plan = going_on(run_dir, flag, str(run_dir), *here)
        assert (plan.device, plan.num_threads) == ("auto", 2)
        assert going_on(run_dir, flag, str(run_dir)).device == "cuda"


# -- runs without checkpoints ----------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.iterdir() if path.is_file() and path.name != ".lock")
    return {path.name: path.read_bytes() for path in files}


def test_a_finished_run_without_checkpoints_has_nothing_left(tmp_path: Path) -> None:
    run_dir = begun(tmp_path / "run", *SMALL, status="done", n_timesteps_done=128)
    for name in ("model.zip", "progress.csv", "episodes.csv"):
        (run_dir / name).write_bytes(b"precious")
    before = contents(run_dir)
    said = output_of("train", "--resume", str(run_dir))
    assert "Nothing left: 128 of 128 steps are trained" in said
    assert contents(run_dir) == before
    said = errors_of("train", "--resume", str(run_dir), "-n", "256")
    assert "got none of a run that trained 128 steps" in said
    assert contents(run_dir) == before


@pytest.mark.parametrize("name", ["progress.csv", "episodes.csv"])
def test_a_run_that_lost_a_table_is_not_gone_on_with(tmp_path: Path, name: str) -> None:
    for each in ("progress.csv", "episodes.csv"):
        (tmp_path / each).touch()
    check_tables(tmp_path, 64)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{name} with the rows up to step 64.*empty file"):
        check_tables(tmp_path, 64)


@pytest.mark.parametrize(
    "more",
    [
        {"status": "interrupted", "sessions": [{"first_step": 0, "saved_step": 64}]},
        {"status": "running", "sessions": [{"first_step": 64}]},
    ],
)
def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    run_dir = begun(tmp_path / "run", *SMALL, **more)
    said = errors_of("train", "--resume", str(run_dir))
    assert f"a checkpoint in {run_dir / 'checkpoints'} to go on" in said
    assert read_record(run_dir)["sessions"] == more.get("sessions", [])
    record = read_record(run_dir)
    del record["status"]
    write_record(run_dir, record)
    assert "to go on from, got none" in errors_of("train", "--resume", str(run_dir))


@pytest.mark.parametrize("name", ["progress.csv", "episodes.csv"])
def test_a_damaged_table_is_named_before_training(tmp_path: Path, name: str) -> None:
    run_dir = begun(tmp_path / "run", *SMALL)
    (run_dir / name).write_bytes(b"\xff\n")
    said = errors_of("train", "--resume", str(run_dir), "--no-progress")
    assert f"numbers by step in {run_dir / name}" in said
    assert "Traceback" not in said
    assert not (run_dir / "model.zip").exists()
