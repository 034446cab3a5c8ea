"""Small files that claim to be huge, or are when unpacked, are refused before they are."""

import json
import os
import re
import struct
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.agents.model_zip import read_model_zip
from rl_infonce.files.csv_log import CSVLog
from rl_infonce.files.state_file import StateBytes, unpack_state
from tests.attacks.forging import (
    PICKLE,
    SoundModel,
    forge,
    members_of,
    memory_bound,
    npy_file,
    parts_of_safetensors,
    pickled,
    safetensors_file,
    with_declared_size,
    zip_file,
)
from tests.attacks.formats import FORMATS, good_files

Copy = Callable[[str], Path]

MB = 2**20
REAL = 40 * MB
"""What the bombs that do go off unpack to."""


def refused(read: Callable[[], Any], n_bytes: int, *named: object) -> str:
    """Return the message of a refusal that takes little memory and little time."""
    start = time.perf_counter()
    with memory_bound(n_bytes), pytest.raises((ValueError, OSError)) as refusal:
        read()
    assert time.perf_counter() - start < 10
    for each in named:
        assert str(each) in str(refusal.value)
    assert len(str(refusal.value)) < 5000
    return str(refusal.value)


# -- zip files --------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["data", "policy.pth"])
@pytest.mark.parametrize("filling", [b"\0", b" ", b"[", b'{"":'])
def test_members_packed_to_nothing_are_not_unpacked(
    member: str, filling: bytes, model: SoundModel
) -> None:
    path = model.write({member: filling * (REAL // len(filling))}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < MB
    message = refused(lambda: read_model_zip(path), 8 * MB, path, f"`{member}`")
    assert re.search(r"at most 20 times smaller, got 4\d,\d{3},\d{3} bytes packed into", message)


@pytest.mark.parametrize("member", ["data", "policy.pth"])
def test_sizes_that_lie_are_not_unpacked(member: str, model: SoundModel) -> None:
    path = model.write({member: bytes(REAL)}, zipfile.ZIP_DEFLATED)
    place = list(model.members).index(member)
    path.write_bytes(with_declared_size(path.read_bytes(), place, 1000))
    refused(lambda: read_model_zip(path), 8 * MB, path, "whole zip file")


def test_sizes_that_are_claimed_are_not_allocated(model: SoundModel) -> None:
    path, content = model.path, zip_file(model.members)
    names = list(model.members)
    for member in ("data", "policy.pth"):
        for claimed in (2**31, 2**32 - 2):
            path.write_bytes(with_declared_size(content, names.index(member), claimed))
            refused(lambda: read_model_zip(path), 8 * MB, path, f"`{member}`", f"{claimed:,}")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packers_that_sb3_does_not_use_are_refused(compression: int, model: SoundModel) -> None:
    path = model.write({"data": bytes(REAL)}, compression)
    refused(lambda: read_model_zip(path), 8 * MB, path, "`data`", "stored or deflated")


def test_members_that_overlap_are_refused(model: SoundModel) -> None:
    """A kilobyte that a thousand entries of the directory share, as in Fifield's bombs (2019)."""
    inner = zip_file({"archive/data/0": bytes(1000), PICKLE: pickled(b"}")})
    start = inner.index(b"PK\x01\x02")
    length = inner.index(b"PK\x01\x02", start + 1) - start
    entries = inner[start : start + length] * 1000 + inner[start + length : -22]
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1001, 1001, len(entries), start, 0)
    path = model.write({"policy.pth": inner[:start] + entries + end})
    refused(lambda: read_model_zip(path), 8 * MB, path, "`policy.pth`", "without compression")


def test_records_of_torch_are_not_unpacked(model: SoundModel) -> None:
    records = model.records()
    name = next(name for name in records if name.endswith("data/0"))
    packed = zip_file({**records, name: bytes(REAL)}, zipfile.ZIP_DEFLATED)
    path = model.write({"policy.pth": packed})
    refused(lambda: read_model_zip(path), 8 * MB, path, "`policy.pth`", "without compression")


# -- pickles ----------------------------------------------------------------------------------

STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ%btQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n("
NAMED = b"}X\x01\0\0\0a"
HUGE = struct.pack("<i", 2**31 - 1)
PICKLES = {
    "bytearray": (b"cbuiltins\nbytearray\nJ", struct.pack("<i", REAL), b"\x85R"),
    "bytes": (b"c_codecs\nencode\nX\1\0\0\0a", b"\x85R"),
    "call of a storage": (b"ctorch\nFloatStorage\nJ", HUGE, b"\x85R"),
    "quantized": (b"ctorch._utils\n_rebuild_qtensor\n)R",),
    "no storage": (b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n)R",),
    "tuples of tuples": (
        NAMED,
        b")",
        b"".join(b"q%cX\1\0\0\0b0h%ch%c\x86" % (i, i, i) for i in range(60)),
        b"s",
    ),
    "memo of tuples": (NAMED, b")", b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)), b"s"),
    "doubled": (NAMED, b")", b"2\x86" * 60, b"s"),
    "a claimed storage": (NAMED, REBUILD, STORAGE % HUGE, b"K\0J", HUGE, b"\x85K\1\x85\x89}tRs"),
    "a broadcast": (NAMED, REBUILD, STORAGE % b"\1\0\0\0", b"K\0J", HUGE, b"\x85K\0\x85\x89}tRs"),
    "beyond the storage": (
        *(NAMED, REBUILD, STORAGE % b"\1\0\0\0", b"J", HUGE),
        b"K\1\x85K\1\x85\x89}tRs",
    ),
    "a number of megabytes": (NAMED, b"\x8b", struct.pack("<i", 2**30), b"s"),
    "text that does not come": (NAMED, b"X", struct.pack("<I", 2**32 - 1), b"s"),
    "a memo of billions": (NAMED, b"r", struct.pack("<I", 2**32 - 1), b"K\1s"),
    "nothing": (b"0",),
    "marks": (b"(" * 100_000,),
    "lists": (b"]" * 100_000 + b"a" * 99_999,),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_fill_the_memory_or_the_day_are_refused(name: str, model: SoundModel) -> None:
    records = {
        PICKLE: pickled(*PICKLES[name]),
        "archive/version": b"3\n",
        "archive/byteorder": b"little",
        "archive/data/0": bytes(4),
    }
    path = model.write({"policy.pth": zip_file(records)})
    refused(lambda: read_model_zip(path), 16 * MB, path, "`policy.pth`")


# -- arrays -----------------------------------------------------------------------------------

ROWS = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s,), }"
ARRAYS = {
    "1e9 elements": npy_file(ROWS % 10**9),
    "1e30 elements": npy_file(ROWS % 10**30),
    "wide elements": npy_file(ROWS.replace("|u1", "|V2000000000") % 3),
    "many axes": npy_file(ROWS % ", ".join(["1"] * 9000)),
    "a long header": npy_file(ROWS % 3, version=b"\x02\x00")[:8] + b"\xff\xff\xff\xff" + b"{",
    "digits": npy_file(ROWS % ("9" * 50_000)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_claim_to_be_huge_are_refused(name: str, copied: Copy) -> None:
    for kind in ("frames", "run"):
        folder = copied(kind)
        pattern = "shard_00001/actions.npy" if kind == "frames" else "replay/actions-*"
        for path in folder.glob(pattern):
            forge(folder, path.relative_to(folder).as_posix(), ARRAYS[name])
        refused(partial(FORMATS[kind].read, folder), 16 * MB, folder, "actions")


def test_sparse_arrays_are_mapped_and_not_read(copied: Copy) -> None:
    folder = copied("frames")
    path = folder / "shard_00001" / "actions.npy"
    os.truncate(path, 2**40)
    refused(lambda: FORMATS["frames"].read(folder), 8 * MB, path, "1099511627776")


# -- safetensors ------------------------------------------------------------------------------


def tensor(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}}


TENSORS = {
    "a header of an exabyte": struct.pack("<Q", 2**60) + b"{}",
    "a header of 99 MB": struct.pack("<Q", 99 * 10**6) + b"{}",
    "1e12 elements": safetensors_file(tensor([10**12], 0, 4 * 10**12), b"abcd"),
    "overflow": safetensors_file(tensor([2**62, 2**62], 0, 4), b"abcd"),
    "no elements, huge": safetensors_file(tensor([0, 2**62], 0, 0)),
    "no elements, too huge": safetensors_file(tensor([2**63, 0], 0, 0)),
    "many axes": safetensors_file(tensor([1] * 100_000, 0, 4), b"abcd"),
    "half bytes": safetensors_file(tensor([2], 0, 1, "F4"), b"a"),
    "six bits": safetensors_file(tensor([4], 0, 3, "F6_E2M3"), b"abc"),
    "exponents": safetensors_file(tensor([1], 0, 1, "F8_E8M0"), b"a"),
    "deep": safetensors_file(b'{"a":' + b"[" * 100_000),
    "negative": safetensors_file(tensor([-1], 0, 4), b"abcd"),
    "twice": safetensors_file(b'{"a":1,"a":2}'),
    "metadata of numbers": safetensors_file({"__metadata__": {"format": 1}}),
    "none": safetensors_file({}),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_claim_to_be_huge_are_refused(name: str, copied: Copy) -> None:
    for kind, file in (("encoder", "encoder"), ("pretraining", "checkpoint"), ("run", "state")):
        folder = copied(kind)
        (path,) = sorted(folder.rglob(f"{file}.safetensors"))[-1:]
        forge(folder, path.relative_to(folder).as_posix(), TENSORS[name])
        where = path.parent if kind == "run" else path
        refused(partial(FORMATS[kind].read, folder), 16 * MB, where)


@pytest.mark.parametrize("size", [2**30, 2**40])
@pytest.mark.parametrize("name", ["encoder", "pretraining"])
def test_tensors_of_a_sparse_file_are_compared_before_they_are_read(
    name: str, size: int, places: dict[str, Path], tmp_path: Path
) -> None:
    ((file, content),) = good_files(name, places[name]).items()
    header, _ = parts_of_safetensors(content)
    ends = {key: at["data_offsets"][1] for key, at in header.items() if key != "__metadata__"}
    last = max(ends, key=lambda key: ends[key])
    begin = header[last]["data_offsets"][0]
    header[last] |= {"shape": [size // 4], "data_offsets": [begin, begin + size]}
    (tmp_path / file).write_bytes(safetensors_file(header))
    os.truncate(tmp_path / file, len(safetensors_file(header)) + begin + size)
    message = refused(lambda: FORMATS[name].read(tmp_path), 16 * MB, tmp_path / file)
    if size == 2**30:  # the other one may be more than the system maps
        assert last in message
        assert f"({size // 4},)" in message


# -- JSON -------------------------------------------------------------------------------------

TEXTS = {
    "deep lists": "[" * 100_000,
    "deep closed lists": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "as deep as Python recurses": "[" * 960 + "]" * 960,
    "empty lists": "[" + "[]," * 5_600_000 + "[]]",
    "digits": "[" + "9" * 100_000 + "]",
    "NaN": "NaN",
    "no bytes": "",
    "no Unicode": "\udcff",
    "surrogate": '"\\ud800"',
    "null": "null",
    "list": "[]",
    "number": "3",
}


Put = Callable[[Path, bytes], None]


def put_data(folder: Path, text: bytes) -> None:
    path = folder / "model.zip"
    path.write_bytes(zip_file({**members_of(path.read_bytes()), "data": text}))


def put_header(file: str, key: str) -> Put:
    def put(folder: Path, text: bytes) -> None:
        header, data = parts_of_safetensors((folder / file).read_bytes())
        header["__metadata__"][key] = text.decode(errors="surrogateescape")
        (folder / file).write_bytes(safetensors_file(header, data))

    return put


def put_file(pattern: str) -> Put:
    def put(folder: Path, text: bytes) -> None:
        path = sorted(folder.rglob(pattern))[-1]
        forge(folder, path.relative_to(folder).as_posix(), text)

    return put


JSON_OF: dict[str, tuple[str, Put]] = {
    "model.zip": ("model", put_data),
    "encoder.safetensors": ("encoder", put_header("encoder.safetensors", "header")),
    "checkpoint.safetensors": ("pretraining", put_header("checkpoint.safetensors", "progress")),
    "the settings of checkpoint.safetensors": (
        "pretraining",
        put_header("checkpoint.safetensors", "settings"),
    ),
    "MANIFEST.json": ("run", put_file("MANIFEST.json")),
    "state.json": ("run", put_file("state.json")),
    "run.json": ("record", put_file("run.json")),
    "manifest.json": ("frames", put_file("manifest.json")),
    "scores.json": ("scores", put_file("scores.json")),
}


@pytest.mark.parametrize("file", JSON_OF)
@pytest.mark.parametrize("text", TEXTS)
def test_json_made_to_harm_is_refused(text: str, file: str, copied: Copy) -> None:
    name, put = JSON_OF[file]
    folder = copied(name)
    put(folder, TEXTS[text].encode(errors="surrogateescape"))
    # The worst is text of 16 MB: read, decoded, and a million values at most made of it.
    refused(lambda: FORMATS[name].read(folder), 300 * MB, folder)


@pytest.mark.parametrize("file", ["MANIFEST.json", "run.json", "manifest.json", "scores.json"])
def test_sparse_json_is_not_read(file: str, copied: Copy) -> None:
    name, _ = JSON_OF[file]
    folder = copied(name)
    path = sorted(folder.rglob(file))[-1]
    os.truncate(path, 2**40)
    refused(lambda: FORMATS[name].read(folder), 8 * MB, path, "1,099,511,627,776")


def test_a_sparse_table_is_not_read(copied: Copy) -> None:
    path = copied("log") / "progress.csv"
    os.truncate(path, 2**40)
    refused(lambda: CSVLog(path, 0), 8 * MB, path, "1,099,511,627,776")
    path.write_text("step,a\n" + "1" * 5000 + ",2\n")
    CSVLog(path, 0).close()
    assert path.read_text() == "step\n"
    path.write_text(f'step,a\n1,"{"x" * 200_000}"\n')
    refused(lambda: CSVLog(path, 0), 8 * MB, path, "field larger than field limit")


def test_a_manifest_of_many_shards_is_refused(copied: Copy) -> None:
    path = copied("frames") / "manifest.json"
    good = json.loads(path.read_text())
    for n_shards in (0, -1, 10**4 + 1, 10**12, 2.0, True, None):
        path.write_text(json.dumps({**good, "settings": good["settings"] | {"n_shards": n_shards}}))
        refused(lambda: FORMATS["frames"].read(path.parent), 8 * MB, path, "settings.n_shards")


STATES = {
    "a deque of 1e30 places": b'{"$deque": [1000000000000000000000000000000, 1]}',
    "a deque of 1e12 places": b'{"$deque": ["1000000000000", 1]}',
    "bytes": b'{"$bytes": "' + b"0" * 999_999 + b'"}',
    "a scalar of many": b'{"$scalar": "no such"}',
}


@pytest.mark.parametrize("state", STATES)
def test_states_made_to_harm_are_refused(state: str) -> None:
    refused(lambda: unpack_state(StateBytes(STATES[state], safetensors_file({}))), 16 * MB)


def test_tensors_of_no_elements_do_not_overflow_a_state() -> None:
    text = json.dumps({"$tensor": "a"}).encode()
    for name in ("no elements, too huge", "half bytes", "six bits", "exponents"):
        packed = StateBytes(text, TENSORS[name])
        refused(partial(unpack_state, packed), 8 * MB, "packed state")
