"""Files made to run code are refused by name, or nobody reads what they carry; nothing runs."""

import io
import json
import os
import pickle
import re
import signal
import stat
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_infonce.agents.model_zip import mapping_of, read_model_zip
from rl_infonce.agents.saved_extractor import read_encoder
from rl_infonce.agents.saved_policy import read_policy
from tests.attacks.forging import (
    PICKLE,
    Payload,
    SoundModel,
    forge,
    members_of,
    npy_file,
    payloads,
    pickled,
    torch_file,
    zip_file,
)
from tests.attacks.formats import FORMATS, good_files, is_of_the_newest

Copy = Callable[[str], Path]

NOT_READ = {("run", "model.zip")}
"""What lies in a run for others: SB3."""

WRAPPINGS = sorted(payloads(Path()))


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """End a test that waits for a pipe, where the system has alarms."""
    if not hasattr(signal, "alarm"):
        yield
        return
    former = signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


def _too_late(*_: object) -> None:
    raise TimeoutError("a parser waits")


def assert_refused(name: str, folder: Path, file: str) -> None:
    with pytest.raises((ValueError, OSError)) as refusal:
        FORMATS[name].read(folder)
    message = str(refusal.value)
    assert str(folder) in message
    # A state is named by its checkpoint, which holds nothing else that is read.
    assert Path(file).name in message or str(Path(file).parent) in message


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_the_payloads_are_payloads(wrapping: str, tmp_path: Path) -> None:
    content = io.BytesIO(payloads(tmp_path / "mark")[wrapping])
    if wrapping == "zip of a zip":
        content = io.BytesIO(members_of(content.getvalue())["policy.pth"])
    if "np" in wrapping:
        loaded = np.load(content, allow_pickle=True)
        _ = loaded if wrapping == "npy" else loaded["arr_0"]
    elif "pickle" in wrapping:
        pickle.load(content)
    else:
        torch.load(content, weights_only=False)
    assert (tmp_path / "mark").exists(), "the tests below show nothing"


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_payload_in_place_of_any_file_never_runs(
    name: str, wrapping: str, places: dict[str, Path], copied: Copy, tmp_path: Path
) -> None:
    mark, folder = tmp_path / "mark", copied(name)
    files = good_files(name, places[name])
    content = payloads(mark)[wrapping]
    for file in files:
        if "MANIFEST" in file or (name == "run" and not is_of_the_newest(file, folder)):
            continue
        forge(folder, file, content)
        if (name, Path(file).name) in NOT_READ:
            FORMATS[name].read(folder)
        else:
            assert_refused(name, folder, file)
        for each, good in files.items():
            (folder / each).write_bytes(good)
    assert not mark.exists()


REASONS = {"torch": "mkdir", "pickle": "torch's zip format"}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_payload_in_any_member_of_a_model_never_runs(wrapping: str, model: SoundModel) -> None:
    mark = model.path.parent / "mark"
    content = payloads(mark)[wrapping]
    for member in (*model.members, "more.pkl", "policy.pth.pkl", "__init__.py"):
        path = model.write({member: content})
        if member in ("data", "policy.pth"):
            reason = REASONS.get(wrapping, "") if member == "policy.pth" else "JSON"
            for read in (read_encoder, read_policy):
                with pytest.raises(ValueError, match=rf"`{member}` in {path} .*{reason}"):
                    read(path)
        else:
            assert read_encoder(path).features_dim == 8
    assert not mark.exists()


def outcome(path: Path) -> str | None:
    """Return why a policy is refused, None if it is not."""
    try:
        read_policy(path)
    except ValueError as error:
        return str(error)
    return None


def test_a_payload_in_any_entry_of_data_never_runs(model: SoundModel) -> None:
    mark = model.path.parent / "mark"
    text: dict[str, Any] = json.loads(model.members["data"])
    bomb = b64encode(pickle.dumps(Payload(mark))).decode()
    for key in (*text, "more"):
        for entry in (bomb, {":type:": "<class 'dict'>", ":serialized:": bomb}, {"x": [bomb]}):
            message = outcome(model.write({"data": json.dumps({**text, key: entry}).encode()}))
            assert message is None or str(model.path) in message
    serialized = [each for each in text.values() if ":serialized:" in mapping_of(each)]
    for each in serialized:
        each[":serialized:"] = bomb
    assert serialized
    path = model.write({"data": json.dumps(text).encode()})
    assert read_encoder(path).features_dim == 8, "what is pickled is not needed"
    assert not mark.exists()


MKDIR = b"cos\nmkdir\n"
REDUCED = {
    "GLOBAL": lambda arg: pickled(MKDIR, b"X", arg, b"\x85R"),
    "aliased": lambda arg: pickled(b"cposix\nmkdir\n", b"X", arg, b"\x85R"),
    "STACK_GLOBAL": lambda arg: pickled(b"\x8c\x02os\x8c\x05mkdir\x93", b"X", arg, b"\x85R"),
    "INST": lambda arg: pickled(b"(X", arg, b"ios\nmkdir\n"),
    "OBJ": lambda arg: pickled(b"(", MKDIR, b"X", arg, b"o"),
    "NEWOBJ": lambda arg: pickled(MKDIR, b"X", arg, b"\x85\x81"),
    "BUILD": lambda arg: pickled(
        b"ccollections\nOrderedDict\n)R}X\x0c\0\0\0__setstate__", MKDIR, b"sbX", arg, b"b"
    ),
    "eval": lambda arg: pickled(b"cbuiltins\neval\nX\x11\0\0\0__import__('os').", b"\x85R"),
    "getattr": lambda arg: pickled(b"cbuiltins\ngetattr\n", MKDIR, b"X", arg, b"\x86R"),
    "load": lambda arg: pickled(b"ctorch\nload\nX", arg, b"\x85R"),
    "codecs": lambda arg: pickled(b"c_codecs\nencode\nX", arg, b"\x85R"),
    "nested names": lambda arg: pickled(b"ctorch.serialization\nos.mkdir\nX", arg, b"\x85R"),
    "like a storage": lambda arg: pickled(b"ctorch\nos.mkdir.xStorage\nX", arg, b"\x85R"),
    "EXT1": lambda arg: pickled(b"\x82\x01X", arg, b"\x85R"),
    "persistent": lambda arg: pickled(b"(X\x07\0\0\0storage", MKDIR, b"X", arg, b"NNtQ"),
}


@pytest.mark.parametrize("how", REDUCED)
def test_no_opcode_calls_what_makes_no_tensors(how: str, model: SoundModel) -> None:
    mark = model.path.parent / "mark"
    text = os.fsencode(mark)
    records = model.records()
    records[PICKLE] = REDUCED[how](len(text).to_bytes(4, "little") + text)
    path = model.write({"policy.pth": zip_file(records)})
    with pytest.raises(ValueError, match=rf"`policy.pth` in {path}"):
        read_encoder(path)
    assert not mark.exists()


def test_the_pickle_that_is_checked_is_the_one_that_is_read(model: SoundModel) -> None:
    records = model.records()
    evil = members_of(torch_file(Payload(model.path.parent / "mark")))[PICKLE]
    for other in (PICKLE.upper(), f"x/{PICKLE}", "data.pkl/../archive/data.pkl", "other/data.pkl"):
        for several in ({**records, other: evil}, {other: evil, **records}):
            path = model.write({"policy.pth": zip_file(several)})
            with pytest.raises(ValueError, match=rf"`policy.pth` in {path} .* 2 data.pkl"):
                read_encoder(path)
    path = model.write({"policy.pth": zip_file({})})
    with pytest.raises(ValueError, match=rf"`policy.pth` in {path}"):
        read_encoder(path)


def test_records_are_read_by_the_reader_that_checked_them(model: SoundModel) -> None:
    records = model.records()
    other = {name: bytes(len(r)) if "/data/" in name else r for name, r in records.items()}
    checked, hidden = zip_file(records), zip_file(other)
    end = checked.index(b"PK\5\6")
    two = hidden[: hidden.index(b"PK\5\6")] + checked  # the end names the first directory's place
    unchecked = torch.load(io.BytesIO(two), weights_only=True)
    assert not any(tensor.any() for tensor in unchecked.values()), "the attack is none"
    assert end == hidden.index(b"PK\5\6")
    _, tensors = read_model_zip(model.write({"policy.pth": two}))
    expected = torch.load(io.BytesIO(checked), weights_only=True)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_a_dict_cannot_bring_its_own_methods(model: SoundModel) -> None:
    records = model.records()
    records[PICKLE] = records[PICKLE][:-1] + b"}X\x05\0\0\0itemsK\x03sb."
    loaded = torch.load(io.BytesIO(zip_file(records)), weights_only=True)
    assert loaded.items == 3, "the attack is none, and this test shows nothing"
    assert read_encoder(model.write({"policy.pth": zip_file(records)})).features_dim == 8


# -- names and links --------------------------------------------------------------------------

SLIPPING = [
    *("..", "a/..", "./../x", "policy.pth/../../x", "x\\..\\y"),
    *("/etc/passwd", "//host/x", "\\\\host\\x", "C:evil", "c:"),
]


@pytest.mark.parametrize("name", SLIPPING)
def test_names_that_slip_out_are_refused_and_nothing_is_written(
    name: str, model: SoundModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    (folder / "model.zip").write_bytes(zip_file({**model.members, name: b"slipped"}))
    message = rf"plain member names in .*model\.zip, got {re.escape(repr(name))}"
    with pytest.raises(ValueError, match=message):
        read_encoder(folder / "model.zip")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written == [folder / "model.zip"]


def test_a_member_that_is_a_link_is_not_followed(model: SoundModel) -> None:
    link = zipfile.ZipInfo("policy.pth")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    members: list[Any] = [("data", model.members["data"]), (link, b"/dev/zero")]
    model.path.write_bytes(zip_file(members))
    with pytest.raises(ValueError, match=r"`policy.pth` in .* to have torch's zip format"):
        read_encoder(model.path)


@pytest.mark.parametrize("times", [1, 2, 20])
def test_a_model_inside_of_models_is_none(times: int, model: SoundModel) -> None:
    content = zip_file(model.members)
    for _ in range(times):
        content = zip_file({"model.zip": content})
    model.path.write_bytes(content)
    with pytest.raises(ValueError, match=r"one `data`.* got 0 among the members \['model.zip'\]"):
        read_model_zip(model.path)


@pytest.mark.parametrize("kind", ["device", "pipe", "loop", "folder", "nowhere"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_file_is_not_read(
    name: str, kind: str, places: dict[str, Path], copied: Copy
) -> None:
    folder, files = copied(name), good_files(name, places[name])
    for file, good in files.items():
        if name == "run" and not is_of_the_newest(file, folder):
            continue
        path = folder / file
        path.unlink()
        _put(path, kind)
        if name == "log":
            read_a_log(path)
        elif name == "scores" and kind in ("loop", "nowhere"):
            FORMATS[name].read(folder)  # there are none yet
        else:
            assert_refused(name, folder, file)
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(good)


def read_a_log(path: Path) -> None:
    """Begin a table where something else is; what a link names stays as it is."""
    from rl_infonce.files.csv_log import CSVLog

    if path.is_dir():
        with pytest.raises(OSError, match=r"progress\.csv"):
            CSVLog(path, 0)
        return
    log = CSVLog(path, 0)
    log.append(1, {"a": 2.0})
    log.close()
    assert not path.is_symlink()
    assert path.read_text() == "step,a\n1,2.0\n"


def _put(path: Path, kind: str) -> None:
    if kind == "pipe":
        if not hasattr(os, "mkfifo"):
            pytest.skip("no pipes that have names here")
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path.name, "nowhere": "/nowhere"}[kind])


HEADERS = {
    "object": npy_file("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }\n", bytes(24)),
    "fields": npy_file("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (3,), }\n"),
    "call": npy_file("__import__('os').system('exit 1')\n"),
    "python 2": npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (3L,), }\n", b"abc"),
    "fortran": npy_file("{'descr': '|u1', 'fortran_order': True, 'shape': (3,), }\n", b"abc"),
    "no end": npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (3"),
    "deep": npy_file("(" * 60_000),
    "negative": npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (-3,), }\n", b"abc"),
    "signed": npy_file("{'descr': '|i1', 'fortran_order': False, 'shape': (3,), }\n", b"abc"),
    "more rows": npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }\n", b"abc"),
    "fewer rows": npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }\n", b"abc"),
    "version 3": npy_file("{'descr': '|u1'}\n", b"abc", version=b"\x03\x00"),
    "no magic": b"abc",
    "magic alone": b"\x93NUMPY\x01\x00",
    "empty": b"",
}


@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_arrays_are_compared_and_not_evaluated(header: str, copied: Copy) -> None:
    for name, pattern in (("frames", "shard_00001/actions.npy"), ("run", "replay/actions-*.npy")):
        folder = copied(name)
        for path in folder.glob(pattern):
            file = path.relative_to(folder).as_posix()
            if name == "frames" or is_of_the_newest(file, folder):
                forge(folder, file, HEADERS[header])
                assert_refused(name, folder, file)
