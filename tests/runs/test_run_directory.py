import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rl_infonce
from rl_infonce.runs.run_directory import (
    claim_run_directory,
    hold_run,
    new_record,
    read_record,
    seconds_of,
    write_record,
)
from rl_infonce.runs.software import differing_versions, git_commit, software_of


def test_claims_count_from_one_and_go_past_gaps(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "ppo"
    assert claim_run_directory(folder, "pong").name == "pong_1"
    (folder / "pong_7").mkdir()
    for other in ("pong_x", "pong", "ms_pong_9", "breakout_30"):
        (folder / other).mkdir()
    assert claim_run_directory(folder, "pong").name == "pong_8"
    assert claim_run_directory(folder, "breakout").name == "breakout_31"


def test_a_claim_never_takes_a_directory_that_appeared_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2):
        (tmp_path / f"pong_{n}").mkdir()
        (tmp_path / f"pong_{n}" / "run.json").touch()
    monkeypatch.setattr(Path, "iterdir", lambda _self: iter(()))  # listed before they appeared
    claimed = claim_run_directory(tmp_path, "pong")
    assert claimed.name == "pong_3"
    assert not list(claimed.glob("*.json"))


def test_claims_at_the_same_moment_all_differ(tmp_path: Path) -> None:
    barrier, claimed = threading.Barrier(16), []

    def claim() -> None:
        barrier.wait()
        claimed.append(claim_run_directory(tmp_path, "pong"))

    threads = [threading.Thread(target=claim) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(claimed)) == 16


def test_record_is_replaced_whole_and_names_versions(tmp_path: Path) -> None:
    record = new_record({"game": "pong"}, seed=3)
    write_record(tmp_path, record)
    write_record(tmp_path, {**record, "status": "done"})
    read = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert read == {**record, "status": "done"}
    assert record["status"] == "running"
    assert read["versions"]["rl_infonce"] == rl_infonce.__version__
    assert {"torch", "ale-py", "stable-baselines3"} <= set(read["versions"])
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_git_commit_of_a_checkout_and_of_none(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
    (tmp_path / "file").write_text("1", encoding="utf-8")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one", "--no-verify"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert git_commit(tmp_path) == head.stdout.strip()
    (tmp_path / "file").write_text("2", encoding="utf-8")
    assert git_commit(tmp_path) == head.stdout.strip() + "-dirty"


def test_a_record_is_read_and_what_was_changed_in_it_is_noticed(tmp_path: Path) -> None:
    record = new_record({"game": "pong", "n_envs": 8}, seed=3)
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    write_record(tmp_path, {**record, "arguments": {"game": "pong", "n_envs": 4}})
    with pytest.raises(ValueError, match=r"arguments in .*run\.json as they were written"):
        read_record(tmp_path)
    write_record(tmp_path, {**record, "format_version": 1})
    with pytest.raises(ValueError, match="in format 2, got 1"):
        read_record(tmp_path)
    write_record(tmp_path, {**record, "sessions": [{"loss": ["n_pairs"]}]})
    with pytest.raises(ValueError, match=r"run\.json, got: .*`loss` that is \['n_pairs'\]"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", '{"format_version": 2, "arguments": {}}', "[" * 100_000]
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"run\.json"):
        read_record(tmp_path)


def test_versions_are_those_of_all_sessions() -> None:
    sessions = [
        {"versions": {"torch": "1"}, "git_commit": "a"},
        {"first_step": 3},  # of an older version
        {"versions": {"torch": "2", "numpy": "2"}, "git_commit": None},
    ]
    record = {"versions": {"torch": "1"}, "git_commit": "a", "sessions": sessions}
    assert software_of(record) == {"versions": {"torch": "1, 2", "numpy": "2"}, "git_commit": "a"}
    assert software_of({"sessions": []}) == {"versions": {}, "git_commit": None}
    own = {"rl_infonce": "2", "python": "3.11"}
    assert differing_versions(own, {"rl_infonce": "1"}) == {"rl_infonce": "1"}


@pytest.mark.parametrize(
    ("sessions", "expected"),
    [
        ([{"first_step": 0, "last_step": 400, "wall_seconds": 40.0}], 40.0),
        # the first was killed at step 310, the second trained 100 of 400 steps in 10 s
        ([{"first_step": 0}, {"first_step": 300, "last_step": 400, "wall_seconds": 10.0}], 40.0),
        # ended at once at step 250, after its checkpoint: 50 steps were trained twice
        (
            [
                {"first_step": 0, "last_step": 250, "wall_seconds": 30.0},
                {"first_step": 200, "last_step": 400, "wall_seconds": 15.0},
            ],
            40.0,
        ),
        ([{"first_step": 0, "wall_seconds": 40.0}], 40.0),  # as in published runs
        ([{"first_step": 0}, {"first_step": 400, "last_step": 400, "wall_seconds": 0.5}], 0.0),
        ([{"first_step": 300, "last_step": 100, "wall_seconds": 0.5}], 0.0),
        ([{"first_step": 0}], 0.0),
        ([{"wall_seconds": 3.0}], 0.0),
        ([], 0.0),
    ],
)
def test_seconds_are_those_of_all_steps(sessions: list[dict[str, float]], expected: float) -> None:
    record = {"n_timesteps_done": 400, "wall_seconds": 99.0, "sessions": sessions}
    assert seconds_of(record) == pytest.approx(expected)


def test_without_a_record_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"a run in {tmp_path}, got no run.json"):
        read_record(tmp_path)


def test_one_process_holds_a_run_and_a_dead_one_does_not(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from rl_infonce.runs.run_directory import hold_run\n"
        "with hold_run(Path(sys.argv[1])):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(BlockingIOError, match=f"but process {other.pid} on "),
            hold_run(tmp_path),
        ):
            pass
        other.kill()
    with hold_run(tmp_path):
        assert f"process {os.getpid()}" in (tmp_path / ".owner").read_text(encoding="utf-8")
    assert not (tmp_path / ".owner").exists()
