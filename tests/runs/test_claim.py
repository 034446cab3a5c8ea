from pathlib import Path

from rl_infonce.files.durable import PARTIAL
from rl_infonce.runs.claim import claimed, held


def test_a_file_is_made_by_one_and_once(tmp_path: Path) -> None:
    path = tmp_path / "cell.json"
    with claimed(path, tmp_path) as mine:
        assert mine
        with claimed(path, tmp_path) as also_mine:
            assert not also_mine
        with claimed(tmp_path / "other.json", tmp_path) as other:
            assert other
    with claimed(path, tmp_path) as still_missing:
        assert still_missing
        path.write_text("{}")
    with claimed(path, tmp_path) as missing:
        assert not missing


def test_who_holds_a_folder_removes_what_dead_writers_left(tmp_path: Path) -> None:
    torn, others = tmp_path / f"run.json.4711{PARTIAL}", tmp_path / "notes.4.partial"
    torn.touch()
    others.touch()
    with held(tmp_path, "tests"):
        assert not torn.exists()
    assert others.exists()


def test_who_holds_a_folder_writes_through_no_link(tmp_path: Path) -> None:
    theirs, folder = tmp_path / "theirs", tmp_path / "run"
    theirs.write_text("as it was")
    folder.mkdir()
    (folder / ".owner").symlink_to(theirs)
    with held(folder, "tests"):
        assert (folder / ".owner").read_text().startswith("process ")
    assert theirs.read_text() == "as it was"
