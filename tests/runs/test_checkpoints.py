"""Checkpoints are whole or not there, whatever fails; tests/attacks damages whole ones."""

import contextlib
import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.files import durable
from rl_infonce.runs.checkpoints import (
    MANIFEST,
    SEAL,
    DamagedCheckpointError,
    checkpoints,
    latest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    seal_of,
    write_checkpoint,
)

FILES = {"state.json": b'{"a": 1}', "state.safetensors": bytes(range(256)) * 5, "empty": b""}
CALLS = ("_write", "_fsync", "_rename")


class FailingDisk:
    """Fails the k-th of the calls that a disk can refuse, after half of a write."""

    def __init__(self, patch: pytest.MonkeyPatch, k: int, kinds: tuple[str, ...] = CALLS) -> None:
        self.n_calls = 0
        for name in kinds:
            patch.setattr(durable, name, self.wrapped(name, getattr(durable, name), k))

    def wrapped(self, name: str, call: Callable[..., Any], k: int) -> Callable[..., Any]:
        def refused(*arguments: Any) -> Any:
            self.n_calls += 1
            if self.n_calls != k:
                return call(*arguments)
            if name == "_write":
                file, content = arguments
                call(file, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        return refused


def write(folder: Path, step: int, **more: Any) -> Path:
    return write_checkpoint(folder, step, {**FILES, "step": b"%d" % step}, {"step": step}, **more)


def n_calls_of_a_checkpoint(folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        disk = FailingDisk(patch, k=0)
        write(folder, 1)
        shutil.rmtree(folder)
        return disk.n_calls


def test_a_checkpoint_says_what_was_written(tmp_path: Path) -> None:
    path = write(tmp_path / "new", 1200)
    assert path == tmp_path / "new" / "step_000000001200"
    found = latest_checkpoint(tmp_path / "new")
    assert (found.path, found.step, found.about) == (path, 1200, {"step": 1200})
    for name, content in FILES.items():
        assert (path / name).read_bytes() == content


KINDS = pytest.mark.parametrize(
    "kinds", [*((name,) for name in CALLS), CALLS], ids=["write", "fsync", "rename", "any"]
)


@KINDS
@pytest.mark.parametrize("same_step", [False, True])
def test_every_call_may_fail(tmp_path: Path, kinds: tuple[str, ...], same_step: bool) -> None:
    k = 0
    while True:
        k += 1
        folder = tmp_path / str(k)
        write(folder, 1)
        second = 1 if same_step else 2
        with pytest.MonkeyPatch.context() as patch:
            disk = FailingDisk(patch, k, kinds)
            reported = None
            try:
                write(folder, second)
            except OSError as error:
                reported = error.errno
        assert reported == (errno.ENOSPC if disk.n_calls >= k else None)
        if reported is None:
            break
        assert latest_checkpoint(folder).step in (1, second)
        assert not [path for path in folder.rglob("*") if durable.PARTIAL in path.name]
        write(folder, 3)
        assert latest_checkpoint(folder).step == 3
    assert k > {"_write": 5, "_fsync": 8, "_rename": 1}.get(kinds[0], 0)


@KINDS
def test_a_process_that_dies_at_any_call_leaves_the_one_before(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    class DeadError(BaseException):
        pass

    for k in range(1, n_calls_of_a_checkpoint(tmp_path / "count") + 1):
        folder = tmp_path / str(k)
        write(folder, 1)
        with pytest.MonkeyPatch.context() as patch:
            n_calls = 0

            def die(call: Any, *arguments: Any, k: int = k) -> Any:
                nonlocal n_calls
                n_calls += 1
                if n_calls >= k:  # and nothing is tidied up by a dead process
                    raise DeadError
                return call(*arguments)

            for name in kinds:
                call = getattr(durable, name)
                patch.setattr(durable, name, lambda *given, call=call: die(call, *given))
            patch.setattr(shutil, "rmtree", lambda *_given, **_more: None)
            patch.setattr(Path, "unlink", lambda *_given, **_more: None)
            with contextlib.suppress(DeadError):
                write(folder, 2)
        assert latest_checkpoint(folder).step in (1, 2)
        prune_checkpoints(folder, keep=5)
        assert not [path for path in folder.rglob("*") if durable.PARTIAL in path.name]
        write(folder, 2)
        assert latest_checkpoint(folder).step == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "in format 1, got 2. Update rl_infonce"),
        ({"step": 2}, "the step of step_000000000001"),
        ({"step": True}, "`step` of type int"),
        ({"about": []}, "`about` of type dict"),
        ({"files": None}, "`files` of type dict"),
        ({"files": {"../../secret": {"sha256": "", "bytes": 0}}}, "inside its folder"),
        ({"files": {"/etc/passwd": {"sha256": "", "bytes": 0}}}, "inside its folder"),
        ({"shared": {"../up": {"sha256": "", "bytes": 0}}}, "inside its folder"),
        ({"files": {"step": 3}}, "SHA-256 and size of"),
        ({"files": {"step": {"sha256": "0", "bytes": 1}}}, "with SHA-256 0, got"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, 1)
    manifest = json.loads((path / MANIFEST).read_text())
    text = json.dumps({**manifest, **change}).encode()
    (path / MANIFEST).write_bytes(text)
    (path / SEAL).write_bytes(seal_of(text))
    with pytest.raises(DamagedCheckpointError, match=message):
        read_checkpoint(path)


def test_without_any_checkpoint_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "step_x").mkdir()
    (tmp_path / f"step_1{durable.PARTIAL}").mkdir()
    with pytest.raises(FileNotFoundError, match=f"a checkpoint in {tmp_path}, got none"):
        latest_checkpoint(tmp_path)


def shard(folder: Path, name: str) -> dict[str, str]:
    """Write a file as ReplayShards names it, and return its path and digest."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    path = folder / "replay" / f"{name}-000000-{digest[:16]}.npy"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(name.encode())
    return {f"replay/{path.name}": digest}


def test_pruning_keeps_the_newest_and_what_they_share(tmp_path: Path) -> None:
    a, b, c, orphan = (shard(tmp_path, name) for name in ("a", "b", "c", "orphan"))
    torn = tmp_path / f"{next(iter(orphan))}{durable.PARTIAL}"
    torn.touch()
    write(tmp_path, 1, shared=b)
    write(tmp_path, 2, shared=a)
    write(tmp_path, 3, shared=c)
    prune_checkpoints(tmp_path, keep=2)
    assert [read_checkpoint(path).step for path in checkpoints(tmp_path)] == [3, 2]
    assert {f"replay/{path.name}" for path in (tmp_path / "replay").iterdir()} == {*a, *c}
    (tmp_path / next(iter(c))).write_bytes(b"C")
    with pytest.raises(DamagedCheckpointError, match="replay/c"):
        latest_checkpoint(tmp_path)


def test_pruning_removes_what_is_of_an_earlier_count_of_steps(tmp_path: Path) -> None:
    for step in (2, 7, 9, 4):
        newest = write(tmp_path, step)
    prune_checkpoints(tmp_path, keep=2, newest=newest)
    assert [read_checkpoint(path).step for path in checkpoints(tmp_path)] == [4, 2]


def test_pruning_leaves_what_is_not_of_checkpoints(tmp_path: Path) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    for folder in (runs, elsewhere):
        folder.mkdir()
        shard(folder, "old")
    names = ("other/model.zip", "other/step_1/x", "replay/notes", "step_5/notes", "tb/events.out")
    others = [*(runs / name for name in names), runs / "mine.partial", elsewhere / "file"]
    for each in others:
        each.parent.mkdir(parents=True, exist_ok=True)
        each.touch()
    (runs / "link").symlink_to(elsewhere)
    write(runs, 1)
    prune_checkpoints(runs, keep=1)
    assert all(each.exists() for each in others)
    assert [path.name for path in (runs / "replay").iterdir()] == ["notes"]
    shutil.rmtree(runs / "replay")
    (runs / "replay").symlink_to(elsewhere / "replay")
    prune_checkpoints(runs, keep=1)
    assert len(list((elsewhere / "replay").iterdir())) == 1, "links are not followed"


def test_a_file_is_replaced_in_one_move(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    durable.replace_json(path, {"a": 1})
    for k in range(1, 5):
        with pytest.MonkeyPatch.context() as patch:
            disk = FailingDisk(patch, k)
            with contextlib.suppress(OSError):
                durable.replace_json(path, {"a": 1, "k": k})
            assert disk.n_calls >= k
        assert json.loads(path.read_text())["a"] == 1
        assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_two_writers_of_a_file_do_not_share_what_they_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, path = durable._rename, tmp_path / "scores.json"

    def after_another(source: Path, target: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(durable, "_rename", rename)
            patch.setattr("os.getpid", lambda: 4711)
            durable.replace_bytes(path, b"another's")
        rename(source, target)

    monkeypatch.setattr(durable, "_rename", after_another)
    durable.replace_bytes(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert [each.name for each in tmp_path.iterdir()] == ["scores.json"]
