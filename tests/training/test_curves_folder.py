"""Two runs never share a folder of TensorBoard's curves, and a run goes on in its own."""

import re
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.runs.run_directory import new_record
from rl_infonce.training.curves_folder import curves_folder
from rl_infonce.training.plan import TrainingPlan


def chosen(run_dir: Path, logs: Path | None, record: dict[str, Any] | None = None) -> Path:
    """Return the folder of a run's curves."""
    run_dir.mkdir(parents=True, exist_ok=True)
    plan = TrainingPlan(env="CartPole-v1", tensorboard_log=logs)
    folder = curves_folder(plan, run_dir, record or {})
    assert folder.is_dir()
    return folder


def test_a_run_goes_on_in_its_own_folder_wherever_both_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = new_record({"env": "CartPole-v1"}, 0)
    folder = chosen(Path("a", "runs", "run"), Path("a", "tb"), record)
    assert re.fullmatch(r"a/tb/ppo/run_[0-9a-f]{8}", folder.as_posix())
    (folder / "events").touch()
    Path("a").rename("b")
    record["sessions"].append({"n_timesteps": 8})
    again = chosen(Path("b", "runs", "run"), tmp_path / "b" / "tb", record | {"status": "failed"})
    assert (again / "events").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"start_time": "2026-01-01T00:00:00+00:00"},
        {"command": "rl-infonce train --run-dir b/run"},
        {"arguments_sha256": "0" * 64},
        {"seed": 1},
    ],
)
def test_runs_of_one_name_have_folders_of_their_own(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    record, logs = new_record({"env": "CartPole-v1"}, 0), tmp_path / "tb"
    assert changes.items().isdisjoint(record.items())
    first = chosen(tmp_path / "a" / "run", logs, record)
    assert chosen(tmp_path / "b" / "run", logs, record | changes) != first


def test_curves_within_the_run_need_no_other_name(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert chosen(run_dir, run_dir / "curves") == run_dir / "curves" / "ppo" / "run"
    assert chosen(run_dir, None) == run_dir / "tb"
    (run_dir / "tb").rename(tmp_path / "elsewhere")
    (run_dir / "tb").symlink_to(tmp_path / "elsewhere")
    assert chosen(run_dir, None) == run_dir / "tb"


def test_a_record_chooses_no_folder_of_another_name(tmp_path: Path) -> None:
    logs = tmp_path / "tb"
    for forged in ("../../other", ["other"], None):
        folder = chosen(tmp_path / "run", logs, {"start_time": forged, "seed": "/"})
        assert re.fullmatch(r"run_[0-9a-f]{8}", folder.name)
        assert folder.parent == logs / "ppo"
