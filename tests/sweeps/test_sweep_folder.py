"""A sweep's folder belongs to one sweep, one grid and one set of versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_infonce.json_text import read_json
from rl_infonce.runs.run_directory import new_record, write_record
from rl_infonce.sweeps.grid import read_grid
from rl_infonce.sweeps.sweep_folder import SweepFolder, remove_checkpoints
from tests.sweeps.grids import write_grid


def test_two_sweeps_never_share_a_folder(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    with folder.held():
        with (
            pytest.raises(BlockingIOError, match=r"process \d+ on .* runs a sweep in it\. Choose"),
            SweepFolder(tmp_path / "sweep").held(),
        ):
            pass
        assert (tmp_path / "sweep" / ".owner").exists()
    with SweepFolder(tmp_path / "sweep").held():
        pass


def adopted(folder: SweepFolder, path: Path, **changes: Any) -> None:
    folder.path.mkdir(exist_ok=True)
    folder.adopt(read_grid(write_grid(path, **changes)), path)


def test_a_grid_may_grow_but_cells_stay_what_they_are(tmp_path: Path) -> None:
    folder, path = SweepFolder(tmp_path / "sweep"), tmp_path / "grid.toml"
    with pytest.raises(FileNotFoundError, match=f"a sweep in {folder.path}"):
        folder.grid()
    adopted(folder, path)
    adopted(folder, path, seeds=[0, 1], arms=["baseline", "infonce", "placebo"])
    assert len(folder.grid().cells()) == 6
    for changes, message in (
        ({"train": {"n_envs": 2}}, r"baseline-0: .*'n_envs': 2.*\(was .*'n_envs': 1"),
        ({"n_timesteps": 256}, r"n_timesteps 256 \(was 128\)"),
        ({"probe": {"n_frames": 10}}, r"\[probe\] .*\(was None\)"),
    ):
        with pytest.raises(ValueError, match=message):
            adopted(folder, path, **changes)
    assert len(folder.grid().cells()) == 6, "what is refused changes nothing"


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
    for name in ("checkpoints/step_000000000064", "checkpoints/replay", "checkpoints/best/step_1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    remove_checkpoints(tmp_path)
    left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("file")]
    assert left == ["checkpoints/best/step_1/file"]
    remove_checkpoints(tmp_path / "none")
