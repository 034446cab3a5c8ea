"""A sweep's folder belongs to one sweep, one grid and one set of versions."""

from pathlib import Path
from typing import Any

import pytest

from rl_infonce.files import durable
from rl_infonce.files.digests import sha256_of_file
from rl_infonce.files.json_text import read_json
from rl_infonce.runs.run_directory import new_record, write_record
from rl_infonce.sweeps.grid import Grid, make_grid, read_grid
from rl_infonce.sweeps.run_cell import Job
from rl_infonce.sweeps.sweep_folder import SweepFolder, remove_checkpoints
from tests.full_disk import no_room
from tests.sweeps.grids import GRID, write_grid


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "sweep")


def adopted(folder: SweepFolder, **changes: Any) -> None:
    """Adopt a grid, and begin its cells."""
    folder.path.mkdir(exist_ok=True)
    path = write_grid(folder.path.with_name("grid.toml"), **changes)
    grid = read_grid(path)
    folder.adopt(grid, path.read_bytes())
    for cell in grid.cells():
        folder.run_dir(cell).mkdir(parents=True, exist_ok=True)
        write_record(folder.run_dir(cell), new_record({}, cell.seed))


def test_what_was_never_begun_may_change(folder: SweepFolder) -> None:
    adopted(folder)
    first, second = folder.grid().cells()
    (folder.run_dir(second) / "run.json").unlink()  # it left an output.log alone, say
    adopted(folder, arms=["infonce"], train={"n_envs": 2})
    with pytest.raises(ValueError, match=f"{second.name}: n_envs 1 .was 2"):
        adopted(folder)
    with pytest.raises(ValueError, match=f"{first.name}: n_timesteps 256"):
        adopted(folder, arms=["baseline"], n_timesteps=256)


def test_a_grid_may_grow_but_cells_stay_what_they_are(folder: SweepFolder) -> None:
    with pytest.raises(FileNotFoundError, match=f"a sweep in {folder.path}"):
        folder.grid()
    adopted(folder)
    adopted(folder, seeds=[0, 1], arms=["baseline", "infonce", "placebo"])
    assert len(folder.grid().cells()) == 6
    for changes, message in (
        ({"train": {"n_envs": 2}}, r"baseline-0: n_envs 2 \(was 1\)"),
        ({"n_timesteps": 256}, r"n_timesteps 256 \(was 128\)"),
        ({"probe": {"n_frames": 10}}, r"\[probe\] .*\(was None\)"),
    ):
        with pytest.raises(ValueError, match=message):
            adopted(folder, **changes)
    assert len(folder.grid().cells()) == 6, "what is refused changes nothing"


def test_what_trains_nothing_else_may_change_at_any_time(folder: SweepFolder) -> None:
    adopted(folder)
    same = {**GRID["train"], "save_freq": 32, "device": "cpu"}
    adopted(folder, train=same)
    (cell, _) = folder.grid().cells()
    words = folder.job(cell, folder.grid()).commands[0]
    assert words[words.index("--save-freq") + 1] == "32"
    with pytest.raises(ValueError, match=r"on_nan skip \(was None\)"):  # nor would `train` go on
        adopted(folder, train={**same, "on_nan": "skip"})


def test_another_encoder_of_the_same_name_is_noticed(
    folder: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, content in (("here", b"one"), ("there", b"two"), ("nowhere", None)):
        (tmp_path / place).mkdir()
        if content is not None:
            (tmp_path / place / "e.safetensors").write_bytes(content)
    arm = {"own": {"pretrained": "e.safetensors"}}
    own: dict[str, Any] = {"arms": ["infonce", "own"], "arm": arm}
    monkeypatch.chdir(tmp_path / "here")
    adopted(folder, **own)
    monkeypatch.chdir(tmp_path / "there")
    with pytest.raises(ValueError, match=r"own-0: content of pretrained \w+ \(was \w+\)\. Change"):
        adopted(folder, **own)
    for place in ("nowhere", "here"):  # a sweep that is done may be looked at anywhere
        monkeypatch.chdir(tmp_path / place)
        adopted(folder, **own)


def test_an_encoder_of_several_cells_is_read_once(
    folder: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return sha256_of_file(path)

    monkeypatch.setattr("rl_infonce.sweeps.sweep_folder.sha256_of_file", counted)
    files = [tmp_path / f"{name}.safetensors" for name in ("one", "two")]
    for file in files:
        file.write_bytes(file.name.encode())
    arm = {file.stem: {"pretrained": str(file)} for file in files}
    folder.check_cells(make_grid({**GRID, "arms": [*arm], "arm": arm, "seeds": [0, 1, 2]}))
    assert read == files


def test_a_full_disk_leaves_the_grid_and_the_record_as_they_were(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted(folder)
    before = {each.name: each.read_bytes() for each in folder.path.glob("*.*")}
    monkeypatch.setattr(durable, "_write", no_room)
    with pytest.raises(OSError, match="No space left"):
        adopted(folder, seeds=[0, 1])
    assert {each.name: each.read_bytes() for each in folder.path.glob("*.*")} == before


def test_cells_that_the_last_grid_lacks_stay_what_they_are_too(folder: SweepFolder) -> None:
    adopted(folder)
    adopted(folder, seeds=[1])
    with pytest.raises(ValueError, match=r"breakout-ppo-baseline-0: n_timesteps 256 \(was 128\)"):
        adopted(folder, n_timesteps=256)
    adopted(folder, seeds=[2], n_timesteps=256)


def test_a_grid_edited_in_its_folder_is_noticed(folder: SweepFolder) -> None:
    adopted(folder)
    folder.begin_session("local", "rl-infonce sweep grid.toml")
    own = write_grid(folder.path / "grid.toml", train={"n_envs": 4})
    with pytest.raises(ValueError, match=r"n_envs 4 \(was 1\).*Change them back"):
        folder.adopt(folder.grid(), own.read_bytes())
    write_grid(own)
    folder.adopt(folder.grid(), own.read_bytes())
    assert len(folder.sessions()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"format_version": 2}',
        '{"format_version": 1, "cells": {"a": 3}}',
        '{"format_version": 1, "cells": {"a": {}}}',
        '{"format_version": 1, "sessions": [3]}',
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(ValueError, match=f"record of a sweep in {tmp_path / 'sweep.json'}"):
        SweepFolder(tmp_path).begin_session("local", "x")


def test_folders_are_found_from_other_working_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = SweepFolder(Path("sweep"))
    grid = make_grid(GRID)
    job = folder.job(grid.cells()[0], grid)
    assert folder.path == tmp_path / "sweep"
    assert str(tmp_path / "sweep" / "cells" / job.name) in job.commands[0]
    assert job.log.is_absolute()


def in_state(folder: SweepFolder, grid: Grid, **more: Any) -> Job:
    """Return the job of a cell whose record says this."""
    cell = grid.cells()[0]
    folder.run_dir(cell).mkdir(parents=True, exist_ok=True)
    write_record(folder.run_dir(cell), {**new_record({}, 0), **more})
    return folder.job(cell, grid, mixed_versions=True)


def test_a_trained_cell_is_only_probed(tmp_path: Path) -> None:
    folder, grid = SweepFolder(tmp_path), make_grid({**GRID, "probe": {}})
    job = in_state(folder, grid, status="interrupted", n_timesteps_done=64)
    assert [words[0] for words in job.commands] == ["train", "probe"]
    job = in_state(folder, grid, status="done", n_timesteps_done=128)
    assert [words[0] for words in job.commands] == ["probe"]
    folder, grid = SweepFolder(tmp_path / "unprobed"), make_grid(GRID)
    assert not in_state(folder, grid, status="done", n_timesteps_done=128).commands


def test_begun_cells_go_on_inexactly_with_mixed_versions(tmp_path: Path) -> None:
    folder, grid = SweepFolder(tmp_path), make_grid(GRID)
    cell = grid.cells()[0]
    assert "--resume-inexact" not in folder.job(cell, grid, mixed_versions=True).commands[0]
    assert "--resume-inexact" in in_state(folder, grid).commands[0]
    assert "--resume-inexact" not in folder.job(cell, grid).commands[0]


def test_other_versions_are_named(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    grid = read_grid(write_grid(tmp_path / "grid.toml"))
    folder.check_versions(grid)
    cell = grid.cells()[1]
    record = new_record({}, 0)
    folder.run_dir(cell).mkdir(parents=True)
    write_record(folder.run_dir(cell), record)
    folder.check_versions(grid)
    record["versions"] = {**record["versions"], "torch": "1.0"}
    write_record(folder.run_dir(cell), record)
    with pytest.raises(ValueError, match=rf"torch is 2.*\(was 1\.0 in {cell.name}\).*--mixed"):
        folder.check_versions(grid)


def test_sessions_are_added(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    for engine in ("local", "ray"):
        folder.begin_session(engine, f"rl-infonce sweep --engine {engine}")
    sessions = dict(read_json(tmp_path / "sweep.json"))["sessions"]
    assert [each["engine"] for each in sessions] == ["local", "ray"]
    assert {"command", "host", "processors", "versions", "git_commit"} <= sessions[0].keys()


def test_checkpoints_of_finished_cells_go_and_the_best_model_stays(tmp_path: Path) -> None:
    shard = f"replay/actions-000000-{'a' * 16}.npy"
    for name in ("step_000000000064/file", shard, "best/step_1/file"):
        path = tmp_path / "checkpoints" / name
        path.parent.mkdir(parents=True)
        path.touch()
    remove_checkpoints(tmp_path)
    left = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]
    assert left == [tmp_path / "checkpoints" / "best" / "step_1" / "file"]
    remove_checkpoints(tmp_path / "none")
