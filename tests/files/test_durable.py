"""Files survive a crash as far as the system can promise it."""

import errno
import os
import stat
from pathlib import Path

import pytest

from rl_infonce.files import durable
from rl_infonce.files.durable import new_folder, replace_bytes


def refuse_to_sync(patch: pytest.MonkeyPatch, code: int, *, folders: bool) -> None:
    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) is folders:
            raise OSError(code, os.strerror(code))

    patch.setattr(durable, "_fsync", refuse)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EBADF])
def test_a_folder_that_cannot_be_synced_holds_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_to_sync(monkeypatch, code, folders=True)
    with new_folder(tmp_path / "run") as folder:
        replace_bytes(folder / "file", b"content")
    assert (tmp_path / "run" / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("code", "folders"), [(errno.ENOSPC, True), (errno.EIO, True), (errno.EINVAL, False)]
)
def test_what_the_disk_refuses_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, folders: bool
) -> None:
    refuse_to_sync(monkeypatch, code, folders=folders)
    with pytest.raises(OSError, match=os.strerror(code)):
        replace_bytes(tmp_path / "file", b"content")
