import argparse
import math
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce import InfoNCEExtractor, __version__
from rl_infonce.cli import main, make_parser
from rl_infonce.cli.train import _ending, _of_this_session, run
from rl_infonce.runs.run_directory import read_record
from rl_infonce.training.plan import TrainingPlan
from tests.cli.running import AtStep, ctrl_c, refusal

pytestmark = pytest.mark.atari


def parse(*flags: str) -> argparse.Namespace:
    return make_parser().parse_args(["train", *flags])


def words(folder: Path, *flags: str) -> list[str]:
    budget = ("-n", "256", "--n-envs", "2", "--seed", "0", "--device", "cpu", "--n-pairs", "8")
    return ["train", "--game", "Pong", *budget, "-f", str(folder), "--no-progress", *flags]


def tiny(folder: Path, *flags: str) -> argparse.Namespace:
    return make_parser().parse_args(words(folder, *flags))


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {k: v for k, v in vars(arguments).items() if k != "given" and not callable(v)}


def test_flags_have_the_zoo_spelling_and_documented_defaults() -> None:
    flags = parse("--env", "ALE/MsPacman-v5")
    assert (flags.game, flags.n_timesteps, flags.algo) == ("ms_pacman", 30_000, "ppo")
    assert (flags.seed, flags.device, flags.log_folder) == (None, "auto", Path("logs"))
    assert (flags.progress, flags.infonce_coef, flags.horizons) == (None, None, None)
    flags = parse("--game", "pong", "--horizons", "4", "8", "-P", "-tb", "curves", "-n", "9")
    assert (flags.horizons, flags.progress) == ([4, 8], True)
    assert (flags.tensorboard_log, flags.n_timesteps) == (Path("curves"), 9)
    assert parse("--game", "pong", "--no-progress").progress is False


def test_the_ending_tells_the_time_of_the_steps_that_it_names() -> None:
    killed = {"first_step": 0}  # and noted no seconds
    last = {"first_step": 896, "wall_seconds": 1.36, "saved_step": 960}
    record = {"status": "done", "steps_per_second": 47.1, "sessions": [killed, last]}
    assert _ending(record, 960) == "Done: 64 steps in 1.4 s (47 steps/s), 960 in all"
    record |= {"status": "interrupted", "sessions": [last | {"first_step": 0}]}
    assert _ending(record, 962) == "Interrupted: 962 steps in 1.4 s (47 steps/s), saved at step 960"


def test_flags_that_were_given_are_known_though_they_say_the_default() -> None:
    flags = parse("--game", "pong", "-n", "30000", "--on-nan", "stop", "--no-progress")
    assert flags.given == {"command", "game", "n_timesteps", "on_nan", "progress"}
    assert parse().given == {"command"}


def test_how_to_go_on_names_what_the_record_does_not_hold() -> None:
    kept = {"device": "cuda", "save_freq": 64}
    changes: list[dict[str, Any]] = [
        {},
        {"device": "cpu", "save_freq": 9, "num_threads": 2},
        {"tensorboard_log": Path("tb")},
    ]
    for changed in changes:
        given: Any = kept | changed
        plan = TrainingPlan(game="pong", **given)
        training: Any = SimpleNamespace(plan=plan, record={"arguments": kept})
        assert _of_this_session(training) == changed


def test_help_says_what_each_preset_sets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "may hold more of both. (32; action_cpc: 256)" in said
    assert "(global; spatial_cpc: global_local, local_local; positional_cpc:" in said


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, part in (("--version", __version__), ("--help", "train")):
        with pytest.raises(SystemExit) as leaving:
            main([flag])
        assert leaving.value.code == 0
        assert part in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (["train", "--game", "breakuot"], 2, "Did you mean 'breakout'"),
        (["probe", "--game", "tetris"], 2, "RAM labels"),
        (["collect", "--game", "pong", "-n", "24", "-o", "new", "--n-shards", "2"], 0, ""),
    ],
)
def test_what_needs_no_torch_does_not_import_it(
    tmp_path: Path, given: list[str], code: int, message: str
) -> None:
    program = (
        "import sys, rl_infonce.cli as cli\n"
        f"try: code = cli.main({given})\n"
        "except SystemExit as leaving: code = leaving.code\n"
        "print(code, 'torch' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines()[-1] == f"{code} False"
    assert message in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--n-envs", "0"], "--n-envs"),
        (["--preset", "cpd"], "cpc"),
        (["--device", "cuda:99"], "--device"),
        (["--decoupled-learning-rate", "1"], "`decoupled_learning_rate` with `decoupled`"),
    ],
)
def test_wrong_values_exit_2_before_a_run_directory_exists(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    said = refusal(*words(tmp_path / "logs", *flags))
    assert message in said.splitlines()[-1]
    assert not (tmp_path / "logs").exists()


@pytest.mark.slow
def test_unwritable_log_folder_exits_2_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for flags in ([], ["-tb", str(tmp_path / "file")]):
        folder = tmp_path / ("ok" if flags else "file")
        said = refusal(*words(folder, *flags))
        assert "Cannot write the logs" in said
        assert f"`{'--tensorboard-log' if flags else '--log-folder'}` to be a folder" in said
        assert not folder.is_dir(), "no run was claimed"


@pytest.mark.thorough
@pytest.mark.slow
def test_curves_of_two_algorithms_go_to_folders_of_their_own(tmp_path: Path) -> None:
    for algo in ("ppo", "dqn"):
        run(tiny(tmp_path / "logs", "--algo", algo, "-tb", str(tmp_path / "curves")))
    (of_dqn, of_ppo) = sorted((tmp_path / "curves").glob("*/pong_1_*"))
    assert (of_dqn.parent.name, of_ppo.parent.name) == ("dqn", "ppo")


@pytest.mark.slow
def test_a_run_ends_with_record_curves_and_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    logs = tmp_path / "my logs"
    assert run(tiny(logs, "--max-grad-ratio", "0.01")) == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    run_dir = logs / "ppo" / "pong_1"
    record = read_record(run_dir)
    assert (record["status"], record["seed"], record["n_timesteps_done"]) == ("done", 0, 256)
    assert record["arguments"]["n_pairs"] == 8
    (session,) = record["sessions"]
    given = {"n_pairs": 8, "horizons": [4], "infonce_coef": 0.01, "critic": "cosine"}
    assert given.items() <= session["loss"].items(), "with the defaults"
    assert record["steps_per_second"] > 0
    assert record["start_time"] <= record["end_time"]

    curves = EventAccumulator(str(run_dir / "tb"))
    curves.Reload()
    assert {"time/fps", "infonce/loss", "train/value_loss"} <= set(curves.Tags()["scalars"])
    assert curves.Scalars("infonce/loss")[-1].step == 256
    assert curves.Scalars("infonce/grad_ratio")[-1].value == pytest.approx(0.01)

    model = PPO.load(run_dir / "model.zip", device="cpu")
    assert model.num_timesteps == 256
    assert isinstance(model.policy.features_extractor, InfoNCEExtractor)
    assert not list(model.policy.mlp_extractor.policy_net.children()), "net_arch is not []"
    names = [path.name for path in run_dir.iterdir() if not path.name.startswith(".")]
    assert sorted(names) == [
        *("checkpoints", "episodes.csv", "model.zip", "progress.csv", "run.json", "tb"),
    ]

    printed = capsys.readouterr().out
    verdict = re.search(r"InfoNCE: loss \d+\.\d\d nats, chance (\d\.\d\d); \d+% of fut", printed)
    assert verdict is not None
    assert float(verdict[1]) == pytest.approx(math.log(8), abs=0.3)
    assert f"tensorboard --logdir '{run_dir.parent}'" in printed
    (command,) = [line for line in printed.splitlines() if line.endswith("  # the baseline")]
    baseline = make_parser().parse_args(shlex.split(command, comments=True)[1:])
    given = settings_of(tiny(logs, "--max-grad-ratio", "0.01")) | {
        "infonce_coef": 0.0,
        "game": "pong",
        "progress": None,
    }
    assert settings_of(baseline) == given


def test_coefficient_zero_trains_the_baseline_and_runs_do_not_share_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ppo" / "pong_1").mkdir(parents=True)
    curves_folder = tmp_path / "curves"
    stop = ConvertCallback(lambda _locals, _globals: False)
    flags = tiny(tmp_path, "--infonce-coef", "0", "-tb", str(curves_folder))
    assert run(flags, callback=stop) == 0
    run_dir = tmp_path / "ppo" / "pong_2"
    model = PPO.load(run_dir / "model.zip", device="cpu")
    assert model.policy.features_extractor.infonce_coef == 0
    printed = capsys.readouterr().out
    assert "InfoNCE: " not in printed
    assert "# with InfoNCE" in printed
    assert list((curves_folder / "ppo").glob("pong_2_*/events.*"))
    assert not (run_dir / "tb").exists()


def test_keyboard_interrupt_in_a_callback_saves_the_model(tmp_path: Path) -> None:
    assert run(tiny(tmp_path), callback=AtStep(10, ctrl_c)) == 130
    run_dir = tmp_path / "ppo" / "pong_1"
    assert read_record(run_dir)["status"] == "interrupted"
    assert PPO.load(run_dir / "model.zip", device="cpu").num_timesteps == 10


def test_an_exception_saves_the_model_and_is_raised_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("the cat ate the emulator")

    with pytest.raises(RuntimeError, match="the cat ate the emulator"):
        run(tiny(tmp_path), callback=AtStep(10, fail))
    run_dir = tmp_path / "ppo" / "pong_1"
    assert read_record(run_dir)["status"] == "failed"
    assert (run_dir / "model.zip").is_file()
    assert "The run failed; what was trained is in" in capsys.readouterr().err


def test_numbers_that_go_bad_end_the_run_with_finite_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Poison(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            self.model.rollout_buffer.advantages[:] = math.nan  # type: ignore[attr-defined]

    assert run(tiny(tmp_path), callback=Poison()) == 1
    run_dir = tmp_path / "ppo" / "pong_1"
    assert read_record(run_dir)["status"] == "failed"
    assert "got NaN or infinity in" in capsys.readouterr().err
    weights = PPO.load(run_dir / "model.zip", device="cpu").policy.state_dict()
    assert all(tensor.isfinite().all() for tensor in weights.values())
