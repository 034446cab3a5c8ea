"""Broken model files are refused by name; tests/attacks has the hostile ones."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import PPO

from rl_infonce.agents import model_zip
from rl_infonce.agents.saved_extractor import read_encoder
from tests.attacks.forging import members_of, torch_file, zip_file
from tests.sb3.worlds import ALGORITHMS

Members = dict[str, bytes]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Members:
    path = tmp_path_factory.mktemp("sound") / "model.zip"
    ALGORITHMS["PPO"]().save(path)
    return members_of(path.read_bytes())


def write(path: Path, members: Members) -> Path:
    path.write_bytes(zip_file(members))
    return path


def _broadcast(members: Members) -> None:
    tensors = torch.load(io.BytesIO(members["policy.pth"]), weights_only=True)
    name = "features_extractor.linear.0.weight"
    tensors[name] = torch.zeros(1).expand(2**20, 2**20)
    members["policy.pth"] = torch_file(tensors)


def _set(**changes: bytes) -> Callable[[Members], None]:
    return lambda members: members.update({k.replace("__", "."): v for k, v in changes.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda members: members.pop("policy.pth"), "one `policy.pth`"),
        (lambda members: members.pop("data"), "one `data`"),
        (_set(data=b"\x80\x04."), "`data` in .*model.zip to be JSON"),
        (_set(data=b"[1, 2]"), "JSON object"),
        (_set(policy__pth=b"PK\x05\x06"), "`policy.pth` in .*model.zip to have torch's zip format"),
        (_set(policy__pth=torch_file([1, 2])), "named tensors, got list"),
        (_set(policy__pth=torch_file({"a": 1})), "dense tensors, got int at 'a'"),
        (_set(policy__pth=torch_file({"a": torch.eye(2).to_sparse()})), "dense tensors"),
        (_set(policy__pth=torch_file({"a": torch.empty(2, device="meta")})), "dense tensors"),
        (_broadcast, r"linear.0.weight.* as many elements as its shape says"),
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


def test_tensors_must_lie_on_their_records() -> None:
    """Before torch 2.9 a pickle may claim a storage of any size."""
    shared, alone = torch.zeros(6), torch.zeros(3, dtype=torch.float64)
    tensors = {"all": shared, "part": shared[2:], "alone": alone, "nothing": torch.zeros(0)}
    records = {"archive/data/0": bytes(24), "archive/data/1": bytes(24), "archive/data.pkl": b""}
    model_zip._check_storages("`policy.pth`", tensors, records)
    claimed = {"claimed": torch.zeros(1000), "sound": shared}
    with pytest.raises(ValueError, match=r"records of \[24, 24\] bytes for tensors of \[4000\]"):
        model_zip._check_storages("`policy.pth`", claimed, records)
    with pytest.raises(ValueError, match=r"got records of \[24\] bytes for tensors of \[24\]"):
        model_zip._check_storages("`policy.pth`", tensors, {"archive/data/0": bytes(24)})
