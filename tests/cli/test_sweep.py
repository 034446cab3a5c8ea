"""`rl-infonce sweep`: cells are trained once, wherever, and what fails is named."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO

from rl_infonce.cli import main, make_parser
from rl_infonce.cli.sweep import _again
from rl_infonce.cli.train import given_settings
from rl_infonce.runs.checkpoints import checkpoints, write_checkpoint
from rl_infonce.runs.run_directory import new_record, write_record
from rl_infonce.sweeps.estimate import Tried, disk_of
from rl_infonce.sweeps.grid import Cell, read_grid
from rl_infonce.sweeps.run_cell import Job, run_job
from rl_infonce.sweeps.sweep_folder import SweepFolder
from rl_infonce.training.plan import new_run
from tests.cli.running import errors_of, output_of, refusal, state_of
from tests.files.test_state_file import assert_same
from tests.made_once import made_once
from tests.runs.waiting import wait_until
from tests.sweeps.grids import write_grid

pytestmark = [
    pytest.mark.atari,
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals"),
]

LONGER = {"n_timesteps": 384, "arms": ["infonce"], "seeds": [0, 1]}
RAY, SLURM = ("--engine", "ray"), ("--engine", "slurm")


def sweep(*words: str) -> int:
    return main(["sweep", *words])


def small(folder: Path, *flags: str, **changes: Any) -> list[str]:
    """Return the words of a sweep of the small grid with changes, into folder / "sweep"."""
    grid = write_grid(folder / "grid.toml", **changes)
    return [str(grid), "-o", str(folder / "sweep"), *flags]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sweep that nothing interrupted."""

    def train_all(folder: Path) -> None:
        assert sweep(*small(folder, "--keep-checkpoints", **LONGER)) == 0

    return made_once(tmp_path_factory, "whole_sweep", train_all) / "sweep"


@pytest.mark.thorough
@pytest.mark.slow
def test_a_failed_cell_is_named_and_the_others_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = tmp_path / "none.safetensors"
    encoder.write_text("no encoder")
    folder, own = tmp_path / "sweep", {"broken": {"pretrained": str(encoder)}}
    words = small(tmp_path, "--n-jobs", "1", arms=["baseline", "broken"], arm=own)
    assert "Arm 'broken' with ppo on breakout: " in refusal("sweep", *words)
    assert not (folder / "cells").exists()
    assert sweep(*words, "--force") == 1
    said = capsys.readouterr()
    assert "breakout-ppo-baseline-0: done in" in said.out
    failed = "breakout-ppo-broken-0: failed (exit code 2): rl-infonce train: error: "
    assert re.search(f"{re.escape(failed)}.*none.safetensors.* \\(see .*output.log\\)", said.out)
    assert "2 cells: 1 done, 1 missing" in said.out
    assert f"Go on with: rl-infonce sweep --resume {folder} --n-jobs 1\n" in said.out
    assert "breakout-ppo-broken-0 failed" in said.err
    done = folder / "cells" / "breakout-ppo-baseline-0"
    assert not list((done / "checkpoints").glob("step_*")), "of finished cells they go"
    assert {"run.json", "model.zip", "episodes.csv"} <= {path.name for path in done.iterdir()}
    assert "none.safetensors" in (done.parent / "breakout-ppo-broken-0/output.log").read_text()
    before = (done / "run.json").read_bytes()
    assert sweep("--resume", str(folder), "--force") == 1
    assert (done / "run.json").read_bytes() == before, "what is done is left alone"


@pytest.mark.thorough
@pytest.mark.slow
def test_a_dry_run_prints_the_plan_and_trains_nothing(tmp_path: Path) -> None:
    said = output_of("sweep", *small(tmp_path, "--dry-run", "--n-jobs", "2", seeds=[0, 1, 2]))
    assert "6 cells in " in said
    assert "1 game x 1 algorithm x 2 arms x 3 seeds, 128 steps each; 6 missing" in said
    assert "breakout-ppo-infonce-2: missing" in said
    assert re.search(r"takes about \d+ seconds, or \d+ seconds with 2 at once", said)
    assert "GiB of disk" in said
    assert not (tmp_path / "sweep").exists()


def test_what_was_asked_for_is_asked_for_again() -> None:
    words = ["sweep", "grid.toml", "--keep-checkpoints", "--force", "--slurm", "timeout_min:9"]
    arguments = make_parser().parse_args([*words, "--engine", "slurm", "--n-threads", "2"])
    found = _again(arguments, Path("my sweep").absolute())
    where = shlex.quote(str(Path("my sweep").absolute()))
    own = "--engine slurm --keep-checkpoints --n-threads 2 --slurm timeout_min:9"
    assert found == f"rl-infonce sweep --resume {where} {own}"
    assert sweep_given(found) - {"grid"} == arguments.given - {"grid", "force"} | {"resume"}


def sweep_given(command: str) -> set[str]:
    """Return the names of the flags of a command."""
    given: set[str] = make_parser().parse_args(shlex.split(command)[1:]).given
    return given


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["."], "Expected the file of a grid, got the folder ..*: rl-infonce sweep --resume .$"),
        (["grid.toml", "--resume", "."], "Expected a grid, or --resume .*, got both"),
        ([], "Expected a grid, or --resume .*, got neither"),
        (["grid.toml", "-o", "file"], "Expected `--output` to be a folder that can be made"),
        (["pilot.toml", "-o", "."], "whose grid.toml would be overwritten. Choose another folder"),
    ],
)
def test_a_place_that_is_none_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_grid(Path("grid.toml"))
    write_grid(Path("pilot.toml"), n_timesteps=256)
    Path("file").write_text("mine")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert re.search(message, refusal("sweep", *words))
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_no_more_of_a_grid_is_read_than_shows_that_it_is_too_long(tmp_path: Path) -> None:
    with (tmp_path / "grid.toml").open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no room on the disk
    assert "Expected a grid of less than 1 MB" in refusal("sweep", str(tmp_path / "grid.toml"))


@pytest.fixture
def no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_infonce.sweeps.estimate.seconds_of_all", lambda *_: Tried(0.0, 0, []))
    monkeypatch.setattr("rl_infonce.sweeps.estimate.disk_of_all", lambda *_: 0)


@pytest.mark.usefixtures("no_estimate")
def test_the_plan_of_a_search_is_of_its_trials(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    study = {"n_trials": 2, "search": {"infonce_coef": {"low": 0.1, "high": 1.0}}}
    said = output_of("sweep", *small(tmp_path, "--dry-run", "--optimize", study=study))
    assert "2 arms x 1 seed," in said
    assert "breakout-ppo-trial_001-0: missing" in said
    assert "baseline" not in said


@pytest.mark.usefixtures("no_estimate")
def test_a_dry_run_refuses_what_the_sweep_would(tmp_path: Path) -> None:
    folder, grid = SweepFolder(tmp_path / "sweep"), write_grid(tmp_path / "grid.toml")
    folder.path.mkdir()
    folder.adopt(read_grid(grid), grid.read_bytes())
    run_dir = folder.run_dir(read_grid(grid).cells()[0])
    run_dir.mkdir(parents=True)
    record = new_record({}, 0)
    write_record(run_dir, record)
    write_grid(grid, n_timesteps=256)
    words = [str(grid), "-o", str(folder.path), "--dry-run"]
    assert "n_timesteps 256 (was 128)" in refusal("sweep", *words)
    write_grid(grid)
    write_record(run_dir, {**record, "versions": {**record["versions"], "torch": "1.0"}})
    assert "(was 1.0 in breakout-ppo-baseline-0)" in refusal("sweep", *words)
    assert sweep(*words, "--mixed-versions") == 0


def test_arms_that_cannot_be_trained_are_named_before_anything_is(tmp_path: Path) -> None:
    bad = {"single": {"batch_size": 1}, "twice": {"batch_size": 1, "n_epochs": 2}}
    arm = {name: {"hyperparameters": values} for name, values in bad.items()}
    words = small(tmp_path, arms=["baseline", *arm], arm=arm, seeds=[0, 1])
    for more in ([], ["--dry-run"]):
        said = refusal("sweep", *words, *more)
        for name in bad:
            assert said.count(f"Arm '{name}' with ppo on breakout: ") == 1
        assert "Arm 'baseline'" not in said
    assert not (tmp_path / "sweep" / "cells").exists()


def test_what_cannot_be_tried_here_is_named_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds_of(cell: Cell, _: int) -> float:
        if cell.arm == "far":
            raise AssertionError("Torch not compiled with CUDA enabled")
        return 3600.0

    monkeypatch.setattr("rl_infonce.sweeps.estimate.seconds_of", seconds_of)
    own = {"arms": ["baseline", "far"], "arm": {"far": {"device": "cuda"}}}
    said = output_of("sweep", *small(tmp_path, "--dry-run", "--n-jobs", "1", **own))
    assert "not in the hours: Arm 'far' with ppo on breakout: AssertionError: Torch" in said
    assert "Training takes about 1.0 hours" in said


@pytest.mark.thorough
@pytest.mark.slow
def test_the_disk_is_estimated_from_above(whole: Path) -> None:
    cell = read_grid(whole / "grid.toml").cells()[0]
    used = sum(p.stat().st_size for p in (whole / "cells" / cell.name).rglob("*") if p.is_file())
    assert used < sum(disk_of(cell, 384)) < 4 * used


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "none"], "none, got no grid.toml"),
        (["--resume", "none", "-o", "x"], "--resume without --output"),
        (["bad.toml"], "Did you mean 'breakout'"),
        (["none.toml"], "`train.pretrained` to be a file, got 'none.safetensors'"),
        (["lost.toml"], "a grid at lost.toml, got no such file"),
        (["GRID", "--n-jobs", "0"], "--n-jobs"),
        (["GRID", "--retries", "3"], "--retries with --engine ray alone, got --engine local"),
        (["GRID", *SLURM, "--n-jobs", "2"], "with --engine local or ray alone"),
        (["GRID", "--slurm", "timeout_min:9"], "--slurm with --engine slurm alone"),
        (["GRID", *RAY, "--address", "127.0.0.1:1"], "cluster at 127.0.0.1:1"),
        (["GRID", *RAY, "--address", "a:1", "--n-jobs", "2"], "a Ray that starts here"),
        (
            ["GRID", *RAY, "--force", "--retries", "-1"],
            "`--retries` to be a finite number >= 0, got -1",
        ),
        (
            ["GRID", *RAY, "--force", "--gpus-per-cell", "-1"],
            "`--gpus-per-cell` to be a finite number >= 0, got -1",
        ),
        (["GRID", *SLURM], "`timeout_min`, the minutes that a job may take, got []"),
        (["GRID", *SLURM, "--dry-run"], "--slurm timeout_min:240"),
        (["GRID", *SLURM, "--force", "--slurm", "timeout_min=5"], "name:value, got 'timeout"),
        (["GRID", *SLURM, "--force", "--slurm", "timeout_min:5"], "got no srun in PATH"),
    ],
)
def test_wrong_usage_exits_2_and_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    write_grid(tmp_path / "GRID")
    write_grid(tmp_path / "bad.toml", games=["breakuot"])
    write_grid(tmp_path / "none.toml", train={"pretrained": "none.safetensors"})
    assert message in refusal("sweep", *words)
    begun = {path.name for path in Path("sweeps").glob("*/*")}
    assert not begun & {"grid.toml", "sweep.json"}


def test_a_full_disk_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_infonce.sweeps.estimate.free_bytes", lambda _: 2**20)
    assert "GiB of room in" in refusal("sweep", *small(tmp_path))
    assert not (tmp_path / "sweep" / "cells").exists()


def test_two_sweeps_in_one_folder_are_refused(tmp_path: Path) -> None:
    with SweepFolder(tmp_path / "sweep").held():
        said = refusal("sweep", *small(tmp_path))
    assert re.search(r"process \d+ on .* runs a sweep in it\. Choose another --output", said)
    assert not (tmp_path / "sweep" / "cells").exists()


class FakeEngine:
    """Stands for `run_locally`: ends cells with a code, whatever they say of themselves."""

    code: int = 0
    status: str | None = None

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.settings: dict[str, Any] = {}
        self.closed = False

    def __call__(
        self, jobs: Sequence[Job], **settings: Any
    ) -> Generator[tuple[str, int], None, None]:
        self.jobs += jobs
        self.settings = settings
        try:
            for job in jobs:
                if self.status is not None:
                    job.log.parent.mkdir(parents=True, exist_ok=True)
                    ended = {"status": self.status, "n_timesteps_done": 128}
                    record, _ = new_run(given_settings(make_parser().parse_args(job.commands[0])))
                    write_record(job.log.parent, {**record, **ended})
                    (job.log.parent / "episodes.csv").write_text("step\n")
                yield job.name, self.code
        except GeneratorExit:
            self.closed = True
            raise


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr("rl_infonce.sweeps.local.run_locally", fake)
    return fake


def test_a_folder_that_was_deleted_is_not_filled_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []

    def delete(jobs: Sequence[Job], **_settings: Any) -> Generator[tuple[str, int], None, None]:
        shutil.rmtree(tmp_path / "sweep")
        for job in jobs:
            codes.append(run_job(job, {}))
            yield job.name, codes[-1]

    monkeypatch.setattr("rl_infonce.sweeps.local.run_locally", delete)
    assert sweep(*small(tmp_path)) == 1
    assert codes == [1], "the others are not tried"
    assert "Expected a sweep in " in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_flags_reach_the_local_engine(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_infonce.sweeps.engines.usable_gpus", lambda: 3)
    assert sweep(*small(tmp_path, "--force", "--n-jobs", "5", "--n-threads", "2")) == 1
    assert engine.settings == {"n_jobs": 5, "n_gpus": 3, "n_threads": 2}


@pytest.mark.slow
@pytest.mark.thorough
def test_slurms_local_executor_trains_what_this_machine_does(tmp_path: Path) -> None:
    grid = str(write_grid(tmp_path / "grid.toml", arms=["infonce"]))
    slurm = ["--engine", "slurm", "--slurm", "cluster:local", "timeout_min:5"]
    for name, own in (("here", ["--n-jobs", "1"]), ("there", slurm)):
        assert sweep(grid, "-o", str(tmp_path / name), *own) == 0
    cells = [tmp_path / name / "cells" / "breakout-ppo-infonce-0" for name in ("here", "there")]
    here, there = (
        sorted(
            str(path.relative_to(cell))
            for path in cell.rglob("*")
            if path.is_file() and "tfevents" not in path.name
        )
        for cell in cells
    )
    assert here == there
    one, other = ((cell / "episodes.csv").read_text() for cell in cells)
    assert one == other
    weights = [PPO.load(cell / "model.zip").policy.state_dict() for cell in cells]
    assert_same(*weights)


def test_a_cell_whose_command_failed_is_failed_whatever_its_files_say(
    tmp_path: Path, engine: FakeEngine
) -> None:
    engine.code, engine.status = 1, "done"
    words = small(tmp_path, "--force")
    assert "breakout-ppo-infonce-0 failed" in errors_of("sweep", *words)
    assert sweep(*words) == 0, "nothing is left to do"


def test_a_study_stops_when_all_of_its_first_trials_fail(
    tmp_path: Path, engine: FakeEngine
) -> None:
    pytest.importorskip("optuna")
    engine.code, engine.status = 1, "failed"
    study = {"n_trials": 8, "search": {"infonce_coef": {"low": 0.01, "high": 1.0}}}
    said = errors_of("sweep", *small(tmp_path, "--optimize", "--force", study=study))
    assert "stops, as 3 trials failed and none has a value" in said
    assert [job.name[-5:] for job in engine.jobs] == ["000-0", "001-0", "002-0"]
    assert sweep("--resume", str(tmp_path / "sweep"), "--optimize", "--force") == 1
    assert [job.name[-5:] for job in engine.jobs[3:]] == ["003-0", "004-0", "005-0"]


def test_a_search_that_is_refused_leaves_the_sweep_as_it_was(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    engine.status = "done"
    study = {"n_trials": 1, "search": {"n_pairs": {"choices": [8]}}}
    words = small(tmp_path, "--optimize", "--force", study=study)
    assert sweep(*words) == 1

    def files() -> dict[str, bytes]:
        names = ("grid.toml", "sweep.json", "study.log")
        return {name: (tmp_path / "sweep" / name).read_bytes() for name in names}

    before = files()
    words = small(tmp_path, "--optimize", "--force", study=study, seeds=[0, 1])
    for more in ([], ["--dry-run"]):
        assert "seeds [0, 1] (was [0]). Change them back" in refusal("sweep", *words, *more)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert 'pip install "rl-infonce[optuna]"' in refusal("sweep", *words)
    assert files() == before


def test_a_trial_in_which_no_episode_ended_says_so(tmp_path: Path, engine: FakeEngine) -> None:
    pytest.importorskip("optuna")
    engine.status = "done"
    study = {"n_trials": 1, "search": {"n_pairs": {"choices": [8]}}}
    words = small(tmp_path, "--optimize", "--force", study=study)
    said = output_of("sweep", *words, code=1)
    assert "trial_000: no value, as in one of its runs no episode ended in time (raise" in said
    foreign = tmp_path / "other" / "cells" / "breakout-ppo-trial_000-0"
    foreign.mkdir(parents=True)
    write_record(foreign, new_record({"n_envs": 7}, 0))
    said = output_of("sweep", *words, "-o", str(tmp_path / "other"), code=1)
    assert "trial_000: failed with" in said


def test_a_folder_with_another_run_in_it_is_named_and_left_alone(
    tmp_path: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.status = "done"
    foreign = tmp_path / "sweep" / "cells" / "breakout-ppo-baseline-0"
    foreign.mkdir(parents=True)
    write_record(foreign, new_record({"n_envs": 7}, 0))
    before = (foreign / "run.json").read_bytes()
    assert sweep(*small(tmp_path, "--force")) == 1
    assert [job.name for job in engine.jobs] == ["breakout-ppo-infonce-0"]
    assert (foreign / "run.json").read_bytes() == before
    said = capsys.readouterr()
    reason = f"Expected the run of breakout-ppo-baseline-0 in {foreign}, got one with n_envs 7"
    assert f"breakout-ppo-baseline-0: failed ({reason}" in said.out
    assert f"rl-infonce sweep: breakout-ppo-baseline-0 failed: {reason}" in said.err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_how_far_the_cells_are(
    tmp_path: Path,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
) -> None:
    engine.code, engine.status = 75, "interrupted"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert sweep(*small(tmp_path, "--force", **LONGER)) == 75
    said = capsys.readouterr().out
    assert bool(re.search(r"breakout-ppo-infonce-1 .*━.* 128 of 384", said)) == is_terminal
    assert (said.count("2 cells: 2 begun") > 1) == is_terminal, "beside the last line"
    assert said.count("breakout-ppo-infonce-1: stopped at step 128\n") == 1


@pytest.mark.parametrize("keeps", [False, True])
def test_checkpoints_of_cells_that_were_done_before_go_at_the_start(
    tmp_path: Path, engine: FakeEngine, keeps: bool
) -> None:
    folder, grid = SweepFolder(tmp_path / "sweep"), write_grid(tmp_path / "grid.toml")
    left = {}
    for cell, status in zip(read_grid(grid).cells(), ("done", "interrupted"), strict=True):
        left[status] = folder.run_dir(cell) / "checkpoints"
        left[status].mkdir(parents=True)
        write_checkpoint(left[status], 128, {"state.json": b"{}"}, {})
        ended = {"status": status, "n_timesteps_done": 128}
        write_record(folder.run_dir(cell), {**new_record({}, cell.seed), **ended})
    assert sweep(*small(tmp_path, "--force", *(["--keep-checkpoints"] if keeps else []))) == 1
    assert bool(checkpoints(left["done"])) == keeps
    assert checkpoints(left["interrupted"])


def test_a_file_that_cannot_be_written_while_cells_run_is_no_wrong_usage(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: Any) -> str:
        raise OSError(28, "No space")

    monkeypatch.setattr("rl_infonce.cli.sweep._words", fail)
    assert "No space" in errors_of("sweep", *small(tmp_path, "--force"))
    assert engine.closed, "which lets trainings save"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--n-jobs", "2"], 2),
        ([*SLURM, "--slurm", "timeout_min:60"], 6),
        ([*RAY, "--address", "head:6379"], 6),
        ([*RAY, "--n-jobs", "2"], 2),
        (["--n-jobs", "100"], 6),
    ],
)
def test_a_cluster_may_run_all_cells_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: int
) -> None:
    estimate = "rl_infonce.sweeps.estimate."
    monkeypatch.setattr(estimate + "seconds_of_all", lambda *_: Tried(6 * 3600.0, 1, []))
    monkeypatch.setattr(estimate + "disk_of_all", lambda *given: given[2] * 2**30)
    said = output_of("sweep", *small(tmp_path, "--dry-run", *words, seeds=[0, 1, 2]))
    assert f"{6 / expected:.1f} hours with {expected} at once" in said
    assert f"at most {expected}.0 GiB of disk" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (2, 1, 3)),  # the GPUs
        (["--n-jobs", "5"], (5, 0.4, 3)),
        (["--n-jobs", "1"], (1, 1, 3)),
        (["--n-jobs", "5", "--gpus-per-cell", "0"], (5, 0, 3)),
        (["--address", "auto"], (None, 0, 3)),
        (["--address", "auto", "--gpus-per-cell", "0.25", "--retries", "7"], (None, 0.25, 7)),
    ],
)
def test_jobs_at_once_and_their_gpus_and_retries_are_those_of_ray(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    expected: tuple[int | None, float, int],
) -> None:
    found: list[Any] = []

    def run(_jobs: Sequence[Job], **settings: Any) -> Generator[tuple[str, int], None, None]:
        found.append((settings["n_jobs"], settings["n_gpus"], settings["n_retries"]))
        yield from ()

    monkeypatch.setattr("rl_infonce.sweeps.engines.usable_gpus", lambda: 2)
    monkeypatch.setattr("rl_infonce.sweeps.on_ray.run_on_ray", run)
    assert sweep(*small(tmp_path, *RAY, "--force", *words)) == 1, "nothing was trained"
    assert found == [expected]


def test_mixed_versions_reach_the_cells_that_were_begun(tmp_path: Path, engine: FakeEngine) -> None:
    words = small(tmp_path, "--force")
    engine.code, engine.status = 75, "interrupted"
    assert sweep(*words) == 75
    engine.code, engine.status = 0, None
    assert sweep(*words, "--mixed-versions") == 1, "they still say they are interrupted"
    asked = ["--resume-inexact" in job.commands[0] for job in engine.jobs]
    assert asked == [False, False, True, True]


@pytest.mark.thorough
@pytest.mark.slow
def test_interrupted_here_and_finished_on_a_cluster_that_loses_a_node(
    whole: Path, tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    folder, command = tmp_path / "sweep", [sys.executable, "-m", "rl_infonce", "sweep"]
    begun = [*command, *small(tmp_path, "--n-jobs", "2", "--keep-checkpoints", **LONGER)]
    runs = [folder / "cells" / f"breakout-ppo-infonce-{seed}" for seed in (0, 1)]
    with subprocess.Popen(begun, stdout=subprocess.PIPE) as process:
        wait_until(lambda: bool(checkpoints(runs[0] / "checkpoints")), process)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 75
    assert b"stopped at step" in said
    stopped = _newest_step(runs)
    assert 0 < stopped < 384

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    try:
        go_on = [*command, "--resume", str(folder), "--keep-checkpoints", "--engine", "ray"]
        with subprocess.Popen([*go_on, "--address", cluster.address]) as process:
            wait_until(lambda: _newest_step(runs) > stopped, process, seconds=180)
            cluster.remove_node(nodes[0], allow_graceful=False)
            assert process.wait(timeout=240) == 0
    finally:
        ray.shutdown()
        cluster.shutdown()
    for run in runs:
        assert_same(state_of(run), state_of(whole / "cells" / run.name))
        record = json.loads((run / "run.json").read_text())
        assert record["status"] == "done"
    sessions = json.loads((folder / "sweep.json").read_text())["sessions"]
    assert [session["engine"] for session in sessions] == ["local", "ray"]


def _newest_step(runs: list[Path]) -> int:
    found = [path for run in runs for path in checkpoints(run / "checkpoints")]
    return max((int(path.name.removeprefix("step_")) for path in found), default=0)
