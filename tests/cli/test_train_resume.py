"""`rl-infonce train` is stopped or killed, and goes on exactly."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce.cli import main, make_parser
from rl_infonce.cli.train import run
from rl_infonce.files import durable
from rl_infonce.networks.encoder_file import save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.resuming.best_model import keep_best
from rl_infonce.runs.checkpoints import checkpoints, latest_checkpoint
from rl_infonce.runs.run_directory import read_record, write_record
from tests.cli.running import AtStep, ctrl_c, errors_of, output_of, refusal, rows_of, state_of
from tests.files.test_state_file import assert_same
from tests.further import further, with_further
from tests.made_once import made_once
from tests.runs.waiting import wait_until

pytestmark = [pytest.mark.atari, pytest.mark.slow]

SIZES = {"ppo": ("384", "2", "32"), "dqn": ("300", "1", "64")}
SHORT_ROLLOUTS = ("--hyperparams", "n_steps:64", "n_epochs:2", "batch_size:64")
FEW_UPDATES = ("--hyperparams", "train_freq:16")


def flags(folder: Path, algorithm: str = "ppo", *more: str) -> list[str]:
    n_steps, n_envs, save_freq = SIZES[algorithm]
    return [
        *("train", "--game", "breakout", "--algo", algorithm, "-n", n_steps, "--n-envs", n_envs),
        *("--seed", "0", "--device", "cpu", "--n-pairs", "8", "--num-threads", "1"),
        *("--save-freq", save_freq, "--no-progress"),
        *(() if "--run-dir" in more else ("-f", str(folder))),
        *(SHORT_ROLLOUTS if algorithm == "ppo" else FEW_UPDATES),
        *more,
    ]


def train(*arguments: str, callback: BaseCallback | None = None) -> int:
    return run(make_parser().parse_args(arguments), callback)


def whole_run(factory: pytest.TempPathFactory, algorithm: str) -> Path:
    """Return the run directory of a training that nothing stopped."""

    def train_it(folder: Path) -> None:
        threads = torch.get_num_threads()
        assert main(flags(folder, algorithm)) == 0
        torch.set_num_threads(threads)

    return made_once(factory, f"whole_{algorithm}", train_it) / algorithm / "breakout_1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory, "ppo")


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("algorithm", with_further(SIZES, {"dqn"}))
def test_a_killed_run_ends_as_one_that_was_not(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, algorithm: str
) -> None:
    command = [sys.executable, "-m", "rl_infonce", *flags(tmp_path, algorithm)]
    run_dir = tmp_path / algorithm / "breakout_1"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: bool(checkpoints(run_dir / "checkpoints")), process)
        time.sleep(0.5)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert main(["train", "--resume", str(run_dir), "--no-progress"]) == 0
    expected = whole_run(tmp_path_factory, algorithm)
    assert_same(state_of(run_dir), state_of(expected))
    assert rows_of(run_dir) == rows_of(expected)
    episodes = (run_dir / "episodes.csv").read_text()
    assert episodes == (expected / "episodes.csv").read_text()
    if algorithm == "ppo":  # DQN plays too few steps for an episode to end
        assert episodes.startswith("step,length,return\n")
        assert len(episodes.splitlines()) > 1
    record = json.loads((run_dir / "run.json").read_text())
    assert [session["first_step"] > 0 for session in record["sessions"]] == [False, True]
    assert record["status"] == "done"


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, further(signal.SIGTERM), further(signal.SIGUSR2)]
)
def test_a_signal_ends_the_run_after_the_update_and_it_goes_on(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    kill = AtStep(150, lambda: os.kill(os.getpid(), number))
    assert train(*flags(tmp_path), callback=kill) == 75
    assert signal.getsignal(number) is before
    run_dir = tmp_path / "ppo" / "breakout_1"
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["n_timesteps_done"]) == ("interrupted", 258)
    assert latest_checkpoint(run_dir / "checkpoints").step == 256
    assert f"rl-infonce train --resume {run_dir}" in capsys.readouterr().out
    if number != signal.SIGINT:
        return  # whichever it was, the files are the same, and how they go on is shown once
    assert train("train", "--resume", str(run_dir), "--no-progress") == 0
    assert "Resuming at step 256: PPO on breakout (seed 0" in capsys.readouterr().out
    assert_same(state_of(run_dir), state_of(whole))
    assert rows_of(run_dir) == rows_of(whole)


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_a_run_that_was_stopped_before_its_last_update_is_not_done(tmp_path: Path) -> None:
    kill = AtStep(150, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert train(*flags(tmp_path), "-n", "257", callback=kill) == 75
    run_dir = tmp_path / "ppo" / "breakout_1"
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["n_timesteps_done"]) == ("interrupted", 258)
    assert train("train", "--resume", str(run_dir), "--no-progress") == 0
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["n_timesteps_done"]) == ("done", 384)


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_a_decoupled_run_is_stopped_and_goes_on_as_one(tmp_path: Path) -> None:
    own = ("--decoupled", "--decoupled-learning-rate", "3e-4")
    stop = AtStep(160, lambda: signal.raise_signal(signal.SIGINT))
    assert main(flags(tmp_path / "whole", "ppo", *own)) == 0
    assert train(*flags(tmp_path / "parts", "ppo", *own), callback=stop) == 75
    parts, expected = (tmp_path / name / "ppo" / "breakout_1" for name in ("parts", "whole"))
    assert main(["train", "--resume", str(parts), "--no-progress"]) == 0
    assert_same(state_of(parts), state_of(expected))
    assert rows_of(parts) == rows_of(expected)
    assert "infonce/loss" in rows_of(parts)[-1]
    assert "infonce/grad_norm_rl" not in rows_of(parts)[-1], "RL's backward carries no loss"
    record = json.loads((parts / "run.json").read_text())
    given = record["arguments"]
    assert (given["decoupled"], given["decoupled_learning_rate"]) == (True, 3e-4)
    losses = [session["loss"] for session in record["sessions"]]
    assert [each["decoupled_learning_rate"] for each in losses] == [3e-4, 3e-4]


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("at", "file"), [(50, "small.safetensors"), (150, "run/small.safetensors")]
)
def test_a_run_keeps_the_encoder_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    encoders = [
        PixelEncoder((4, 84, 84), 16, generator=torch.Generator().manual_seed(i)) for i in range(2)
    ]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    save_encoder(encoders[0], file)
    kill = AtStep(at, lambda: os.kill(os.getpid(), signal.SIGTERM))
    frozen = ("--pretrained", file, "--freeze-encoder", "--run-dir", "run")
    assert train(*flags(tmp_path, "ppo", *frozen), callback=kill) == 75
    save_encoder(encoders[1], file)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert train("train", "--resume", str(tmp_path / "run"), "--no-progress") == 0
    model: Any = PPO.load(tmp_path / "run" / "model.zip", device="cpu")
    weight = model.policy.features_extractor.cnn[0].weight
    assert torch.equal(weight, encoders[0].state_dict()["cnn.0.weight"])


@pytest.mark.thorough
def test_curves_have_every_step_once(whole: Path, tmp_path: Path) -> None:
    def curve(run_dir: Path) -> list[tuple[int, float]]:
        events = EventAccumulator(str(run_dir / "tb"))
        events.Reload()
        return [(event.step, event.value) for event in events.Scalars("infonce/loss")]

    assert train(*flags(tmp_path, "ppo"), callback=AtStep(300, ctrl_c)) == 130
    run_dir = tmp_path / "ppo" / "breakout_1"
    newest, *_ = checkpoints(run_dir / "checkpoints")
    shutil.rmtree(newest)  # so that curves are ahead of the checkpoint
    assert train("train", "--resume", str(run_dir), "--no-progress") == 0
    assert curve(run_dir) == curve(whole)


def test_a_finished_run_has_nothing_left_and_can_be_extended(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "breakout_1"
    shutil.copytree(whole, run_dir)

    def written() -> dict[Path, int]:
        files = [path for path in run_dir.rglob("*") if path.is_file()]
        return {path: path.stat().st_mtime_ns for path in files if not path.name.startswith(".")}

    before = written()
    table = (run_dir / "episodes.csv").replace(tmp_path / "episodes.csv")
    said = errors_of("train", "--resume", str(run_dir), "--no-progress", "-n", "400")
    assert "episodes.csv with the rows up to step 384, got no such file" in said
    table.replace(run_dir / "episodes.csv")
    assert train("train", "--resume", str(run_dir), "--no-progress") == 0
    assert latest_checkpoint(run_dir / "checkpoints").step == 384
    assert written() == before, "a model written again is another file for its scores"
    assert train("train", "--resume", str(run_dir), "--no-progress", "-n", "400") == 0
    assert latest_checkpoint(run_dir / "checkpoints").step == 512


@pytest.mark.thorough
def test_a_budget_below_what_is_trained_is_refused(tmp_path: Path) -> None:
    stop = AtStep(160, lambda: signal.raise_signal(signal.SIGINT))
    assert train(*flags(tmp_path), callback=stop) == 75
    run_dir = tmp_path / "ppo" / "breakout_1"
    record = (run_dir / "run.json").read_bytes()
    said = errors_of("train", "--resume", str(run_dir), "-n", "100", "--no-progress")
    assert "`-n` above the 256 steps that are trained, got 100." in said
    assert (run_dir / "run.json").read_bytes() == record
    assert main(["train", "--resume", str(run_dir), "--no-progress"]) == 0
    assert latest_checkpoint(run_dir / "checkpoints").step == 384


def test_a_run_whose_model_finds_no_room_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "system"
    system.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(system))
    write = durable._write

    def refused(file: Any, content: bytes) -> None:
        if (
            "model.zip" in file.name
            and "breakout_1" in file.name
            and "checkpoints" not in file.name
        ):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, content)

    monkeypatch.setattr(durable, "_write", refused)
    assert train(*flags(tmp_path), "-n", "128") == 1
    run_dir = tmp_path / "ppo" / "breakout_1"
    assert json.loads((run_dir / "run.json").read_text())["status"] == "interrupted"
    monkeypatch.setattr(durable, "_write", write)
    assert main(["train", "--resume", str(run_dir), "--no-progress"]) == 0
    assert json.loads((run_dir / "run.json").read_text())["status"] == "done"
    assert PPO.load(run_dir / "model.zip").num_timesteps == 128


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_disk_that_stays_full_costs_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system, logs = tmp_path / "system", tmp_path / "logs"
    system.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(system))
    write = durable._write

    def refuse() -> None:
        monkeypatch.setattr(durable, "_write", refused)

    def refused(file: Any, content: bytes) -> None:
        if str(logs) in file.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, content)

    few = ("-n", "4000", "--n-envs", "1", "--save-freq", "1")
    assert train(*flags(logs), *few, callback=AtStep(200, refuse)) == 1
    said = capsys.readouterr()
    (model,) = system.glob("rl_infonce_*/model.zip")
    assert f"Model:  {model}" in said.out
    assert "No space left on device. The one before it is whole; 5 tries in a row" in said.err
    assert "run.json could not be updated: [Errno 28]" in said.err
    steps = PPO.load(model).num_timesteps
    run_dir = logs / "ppo" / "breakout_1"
    assert latest_checkpoint(run_dir / "checkpoints").step == steps - 5 * 64
    monkeypatch.setattr(durable, "_write", write)
    assert main(["train", "--resume", str(run_dir), "-n", str(steps), "--no-progress"]) == 0


@pytest.mark.parametrize("mean", [2.5, 0.004])
def test_the_best_model_is_named_at_the_end(whole: Path, tmp_path: Path, mean: float) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    model = PPO("MlpPolicy", "CartPole-v1")
    model.num_timesteps = 384
    model.ep_info_buffer = deque([{"r": mean}], maxlen=1)
    keep_best(run_dir / "checkpoints", model, lambda: b"zip")
    said = output_of("train", "--resume", str(run_dir), "--no-progress")
    path = run_dir / "checkpoints" / "best" / "step_000000000384" / "model.zip"
    assert f"Best:   {path} (step 384, mean return {mean})\n" in said


@pytest.mark.thorough
def test_a_run_without_a_checkpoint_yet_begins_anew(whole: Path, tmp_path: Path) -> None:
    # A checkpoint is due with the first rollout, which does not come to its end.
    assert train(*flags(tmp_path), "--save-freq", "1", callback=AtStep(6, ctrl_c)) == 130
    run_dir = tmp_path / "ppo" / "breakout_1"
    (session,) = json.loads((run_dir / "run.json").read_text())["sessions"]
    assert (session["last_step"], session["saved_step"]) == (6, None)
    assert train("train", "--resume", str(run_dir), "--no-progress", "--save-freq", "16") == 0
    assert_same(state_of(run_dir), state_of(whole))


def test_the_same_command_starts_a_run_and_goes_on(tmp_path: Path) -> None:
    command = flags(tmp_path, "ppo", "-n", "128", "--run-dir", str(tmp_path / "mine"))
    said = output_of(*command)
    assert not (tmp_path / "ppo").exists()
    assert re.search(r"Training: PPO(.|\n)*: 128 steps in \d+\.\d s \(\d+ steps/s\)\n", said)
    said = output_of(*command, "-n", "256")
    again = r"Resuming at step 128(.|\n)*: 128 steps in \d+\.\d s \(\d+ steps/s\), 256 in all\n"
    assert re.search(again, said)
    said = refusal(*command, "--infonce-coef", "0", "--hyperparams", "gamma:1")
    for words in ("with the settings it has, got: ", "infonce_coef is ", "hyperparams is "):
        assert words in said


def test_a_damaged_checkpoint_is_named_or_passed_over(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "breakout_1"
    shutil.copytree(whole, run_dir)
    newest, _ = checkpoints(run_dir / "checkpoints")
    with (newest / "state.json").open("ab") as file:
        file.write(b" ")
    write_record(run_dir, {**read_record(run_dir), "status": "running"})  # as if killed at the end
    said = errors_of("train", "--resume", str(run_dir), "--no-progress")
    assert "state.json with" in said
    assert "with --fall-back" in said
    assert main(["train", "--resume", str(run_dir), "--no-progress", "--fall-back"]) == 0
    assert_same(state_of(run_dir), state_of(whole))
