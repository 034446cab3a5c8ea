"""Two runs never share a folder of TensorBoard's curves, and a run goes on in its own."""

from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO

from rl_infonce import InfoNCEExtractor
from rl_infonce.training.curves_folder import curves_folder
from rl_infonce.training.plan import TrainingPlan
from rl_infonce.training.session_record import SessionRecord


def chosen(
    run_dir: Path, logs: Path | None, sessions: list[Any] | None = None, *, begins: bool = True
) -> Path:
    """Return the folder of a run's curves, which hold a file then."""
    run_dir.mkdir(parents=True, exist_ok=True)
    plan = TrainingPlan(env="CartPole-v1", tensorboard_log=logs)
    folder = curves_folder(plan, run_dir, {"sessions": sessions or []}, print)
    assert folder.is_dir()
    if begins:
        (folder / "events.out.tfevents.1").touch()
    return folder


def noted(folder: Path) -> list[Any]:
    return [{"curves": str(folder.resolve())}, {}]


def test_two_runs_of_one_name_have_folders_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logs = Path("tb")
    first = chosen(tmp_path / "a" / "run", logs)
    assert first == Path("tb", "ppo", "run")
    assert not capsys.readouterr().out
    second = chosen(tmp_path / "b" / "run", logs)
    assert second == Path("tb", "ppo", "run_2")
    assert f"curves go to {second}, as {first} holds those of" in capsys.readouterr().out
    assert chosen(tmp_path / "c" / "run", logs) == Path("tb", "ppo", "run_3")
    capsys.readouterr()
    for run, folder in (("a", first), ("b", second)):
        again = chosen(tmp_path / run / "run", tmp_path / "tb", noted(folder))
        assert again == folder.resolve()
    assert not capsys.readouterr().out, "they go on"


def test_a_folder_without_curves_is_taken(tmp_path: Path) -> None:
    logs = tmp_path / "tb"
    assert chosen(tmp_path / "run", logs, begins=False) == chosen(tmp_path / "run", logs)
    (logs / "ppo" / "run_2").touch()
    assert chosen(tmp_path / "b" / "run", logs).name == "run_3"


def test_curves_within_the_run_need_no_note(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for logs in (None, run_dir / "curves"):
        assert chosen(run_dir, logs) == chosen(run_dir, logs)
    (run_dir / "tb").rename(tmp_path / "elsewhere")
    (run_dir / "tb").symlink_to(tmp_path / "elsewhere")
    assert chosen(run_dir, None) == run_dir / "tb"


def test_a_run_that_is_moved_with_its_curves_goes_on_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir, logs = Path("a", "runs", "run"), Path("a", "tb")
    chosen(Path("a", "others", "run"), logs)
    folder = chosen(run_dir, logs)
    assert folder.name == "run_2"
    record: dict[str, Any] = {"sessions": []}
    kwargs = {"features_extractor_class": InfoNCEExtractor}
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, policy_kwargs=kwargs)
    SessionRecord(run_dir, record).begin(model, 8, [], folder)
    Path("a").rename("b")
    moved = chosen(Path("b", "runs", "run"), Path("b", "tb"), record["sessions"])
    assert moved == Path("b", "tb", "ppo", "run_2")


@pytest.mark.parametrize("name", ["..", "other", "run_2x", "run_2/../other"])
def test_a_record_names_no_folder_of_another_run(tmp_path: Path, name: str) -> None:
    logs = tmp_path / "tb"
    forged = [{"curves": str((logs / "ppo").resolve() / name)}]
    for _ in range(2):
        chosen(tmp_path / "other", logs)
    assert chosen(tmp_path / "run", logs, forged).name == "run"
