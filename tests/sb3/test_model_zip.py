"""Hostile and broken model files: refused by name, and nothing in them runs."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import PPO

from rl_infonce.sb3 import model_zip
from rl_infonce.sb3.model_zip import read_model_zip
from rl_infonce.sb3.saved_model import read_encoder
from rl_infonce.sb3.trusted_model import read_trusted_encoder
from tests.sb3.worlds import ALGORITHMS

Members = dict[str, bytes]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Members:
    path = tmp_path_factory.mktemp("sound") / "model.zip"
    ALGORITHMS["PPO"]().save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, members: Members, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def torch_file(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def with_payloads(sound: Members, mark: Path, *, in_policy: bool) -> Members:
    """Return a model with a payload in every place where SB3 or torch would unpickle."""
    text = json.loads(sound["data"])
    bomb = base64.b64encode(pickle.dumps(Payload(mark))).decode()
    for entry in text.values():
        if isinstance(entry, dict) and ":serialized:" in entry:
            entry[":serialized:"] = bomb
    text["extra"] = {":type:": "<class 'dict'>", ":serialized:": bomb}
    raw = pickle.dumps(Payload(mark))
    return {
        "data": json.dumps(text).encode(),
        "pytorch_variables.pth": torch_file(Payload(mark)),
        "policy.optimizer.pth": raw,
        "policy.pth": torch_file({"x": Payload(mark)}) if in_policy else sound["policy.pth"],
        "_stable_baselines3_version": raw,
        "system_info.txt": raw,
    }


def test_payloads_beside_the_tensors_are_never_executed(tmp_path: Path, sound: Members) -> None:
    mark = tmp_path / "executed"
    path = write(tmp_path / "model.zip", with_payloads(sound, mark, in_policy=False))
    assert read_encoder(path).features_dim == 32
    assert not mark.exists()
    with pytest.raises(FileExistsError):  # of the second payload's mkdir
        read_trusted_encoder(path)
    assert mark.exists(), "the payload is no payload, and this test shows nothing"


@pytest.mark.parametrize("legacy", [False, True])
def test_a_payload_among_the_tensors_is_refused_and_not_executed(
    tmp_path: Path, sound: Members, legacy: bool
) -> None:
    mark = tmp_path / "executed"
    members = with_payloads(sound, mark, in_policy=True)
    if legacy:
        members["policy.pth"] = pickle.dumps(Payload(mark))
    path = write(tmp_path / "model.zip", members)
    reason = "zip format" if legacy else "mkdir"
    with pytest.raises(ValueError, match=rf"`policy.pth` in .*model.zip .*{reason}"):
        read_encoder(path)
    assert not mark.exists()
    if not legacy:
        torch.load(io.BytesIO(members["policy.pth"]), weights_only=False)
        assert mark.exists(), "the payload is no payload, and this test shows nothing"


def _broadcast(members: Members) -> None:
    tensors = torch.load(io.BytesIO(members["policy.pth"]), weights_only=True)
    name = "features_extractor.linear.0.weight"
    tensors[name] = torch.zeros(1).expand(2**20, 2**20)
    members["policy.pth"] = torch_file(tensors)


def _deflated(members: Members) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(2**24))
    members["policy.pth"] = file.getvalue()


def _set(**changes: bytes) -> Callable[[Members], None]:
    return lambda members: members.update({k.replace("__", "."): v for k, v in changes.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda members: members.pop("policy.pth"), "one `policy.pth`"),
        (lambda members: members.pop("data"), "one `data`"),
        (lambda members: members.update({"../../evil": b""}), "member names .*, got '../../evil'"),
        (lambda members: members.update({"/etc/passwd": b""}), "member names"),
        (lambda members: members.update({"a\\..\\b": b""}), "member names"),
        (lambda members: members.update({"C:evil": b""}), "member names"),
        (_set(data=b"\x80\x04."), "`data` in .*model.zip to be JSON"),
        (_set(data=b"[" * 200_000), "`data` in .*model.zip to be JSON"),
        (_set(data=b"[1, 2]"), "JSON object"),
        (_set(policy__pth=b"PK\x05\x06"), "`policy.pth` in .*model.zip in torch's zip format"),
        (_set(policy__pth=torch_file([1, 2])), "named tensors, got list"),
        (_set(policy__pth=torch_file({"a": 1})), "dense tensors, got int at 'a'"),
        (_set(policy__pth=torch_file({"a": torch.eye(2).to_sparse()})), "dense tensors"),
        (_set(policy__pth=torch_file({"a": torch.empty(2, device="meta")})), "dense tensors"),
        (_broadcast, r"linear.0.weight.* as many elements as its shape says"),
        (_deflated, "without compression"),
    ],
)
def test_members_that_are_wrong_are_named(
    tmp_path: Path, sound: Members, change: Callable[[Members], Any], message: str
) -> None:
    members = dict(sound)
    change(members)
    path = write(tmp_path / "model.zip", members)
    with pytest.raises(ValueError, match=message):
        read_encoder(path)


def test_sizes_are_compared_before_anything_is_unpacked(
    tmp_path: Path, sound: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_args: object) -> bytes:
        raise AssertionError("a member was unpacked")

    members = sound | {"data": bytes(2**20 + 1)}  # a megabyte of zeros, a kilobyte packed
    monkeypatch.setitem(model_zip._LARGEST, "data", 2**20)
    path = write(tmp_path / "model.zip", members, zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(zipfile.ZipFile, "read", read)
    with pytest.raises(
        ValueError, match=r"`data` in .*model.zip .* 1,048,576 bytes, got 1,048,577"
    ):
        read_model_zip(path)


def test_a_size_that_lies_is_caught(tmp_path: Path, sound: Members) -> None:
    path = write(tmp_path / "model.zip", sound, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")  # the first member of the central directory: data
    content[entry + 24 : entry + 28] = struct.pack("<I", 100)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model.zip to be a whole zip file"):
        read_model_zip(path)


@pytest.mark.parametrize(
    ("keep", "reason"),
    [
        (0, "not a zip file"),
        (10, "not a zip file"),
        (5_000, "not a zip file"),
        (-30, "one `data`"),  # where zipfile takes the end of a .pth member for the file's own
        (-2_000, "one `data`"),
    ],
)
def test_a_truncated_or_foreign_file_is_named(
    tmp_path: Path, sound: Members, keep: int, reason: str
) -> None:
    whole = write(tmp_path / "whole.zip", sound).read_bytes()
    path = tmp_path / "model.zip"
    path.write_bytes(whole[:keep])
    with pytest.raises(ValueError, match=rf"model.zip to .* whole .*{reason}|{reason}.* whole"):
        read_encoder(path)


def test_two_members_of_one_name_are_refused(tmp_path: Path, sound: Members) -> None:
    path = write(tmp_path / "model.zip", sound)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("policy.pth", b"")
    with pytest.raises(ValueError, match=r"one `policy.pth`.*got 2"):
        read_encoder(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.zip", tmp_path):
        with pytest.raises(FileNotFoundError, match=rf"at {path}, got no such file"):
            read_encoder(path)


def test_limits_leave_room_for_ordinary_models(tmp_path: Path) -> None:
    env = ALGORITHMS["PPO"]().env
    assert env is not None
    model = PPO("CnnPolicy", env, policy_kwargs={"features_extractor_kwargs": {}})
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        for name, largest in model_zip._LARGEST.items():
            assert 20 * archive.getinfo(name).file_size < largest
