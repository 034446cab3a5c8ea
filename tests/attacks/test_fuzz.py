"""Files that hypothesis changes: nothing but the documented errors ever comes out."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_infonce.agents.saved_policy import read_policy
from tests.attacks.forging import members_of, parts_of_safetensors, safetensors_file, zip_file
from tests.attacks.formats import FORMATS, good_files
from tests.attacks.place import Place

pytestmark = pytest.mark.slow

FEW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    root = tmp_path_factory.mktemp("good")
    return {name: Place(name, root / name) for name in FORMATS}


# -- bytes ------------------------------------------------------------------------------------


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a file with some bytes set, cut out, put in or repeated, mostly near its ends."""
    for _ in range(draw(st.integers(1, 4))):
        size = len(content)
        start, end = st.integers(0, min(size, 200)), st.integers(max(size - 200, 0), size)
        place = draw(st.one_of(start, end, st.integers(0, size)))
        length = draw(st.sampled_from([0, 1, 2, 4, 8, 100]))
        other = draw(st.one_of(st.binary(max_size=8), st.sampled_from(WORDS)))
        content = content[:place] + other + content[place + length :]
    return content


WORDS = [
    *(b"", b"\0" * 8, b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\1\0\0\0\0\0\0\0"),
    *(b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"\x93NUMPY", b"null", b"NaN", b"{}"),
    *(b"[", b"]", b'"', b",", b"1e999", b"-1", b"true", b"\\u0000", b"9" * 40),
]


@pytest.mark.parametrize("name", FORMATS)
@FEW
@given(data=st.data())
def test_changed_bytes(name: str, places: dict[str, Place], data: Any) -> None:
    place = places[name]
    file = data.draw(st.sampled_from(sorted(place.files)))
    place.check({file: data.draw(changed_bytes(place.files[file]))}, forged=True)


@pytest.mark.parametrize("member", ["data", "policy.pth"])
@FEW
@given(data=st.data())
def test_changed_members_of_models(member: str, places: dict[str, Place], data: Any) -> None:
    place = places["model"]
    members = members_of(place.files["model.zip"])
    members[member] = data.draw(changed_bytes(members[member]))
    place.check({"model.zip": zip_file(members)})


@settings(FEW, max_examples=150)
@given(data=st.data())
def test_changed_pickles_of_models(places: dict[str, Place], data: Any) -> None:
    place = places["model"]
    members = members_of(place.files["model.zip"])
    records = members_of(members["policy.pth"])
    record = data.draw(st.sampled_from(sorted(records)))
    records[record] = data.draw(changed_bytes(records[record]))
    place.check({"model.zip": zip_file({**members, "policy.pth": zip_file(records)})})


# -- JSON -------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, float("nan")])
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=3), st.just("x" * 5000))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def changed_json(draw: st.DrawFn, tree: Any) -> Any:
    """Draw a tree in which some values are others, gone, renamed or twice there."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_containers(tree))
        if not places:
            return draw(TREES)
        container = draw(st.sampled_from(places))
        key: Any = draw(st.sampled_from(_keys(container)))
        how = draw(st.sampled_from(["other", "other", "gone", "renamed", "twice", "inside"]))
        value = container[key] if how == "gone" else container.pop(key)
        if how == "gone":
            del container[key]
        elif isinstance(container, list):
            others = {"other": [draw(TREES)], "twice": [value, value], "inside": [[value]]}
            container[key:key] = others.get(how, [])
        else:
            name = draw(st.text(max_size=5)) if how == "renamed" else key
            container[name] = {"other": draw(TREES), "inside": {key: value}}.get(how, value)
    return tree


def _keys(container: Any) -> list[Any]:
    return list(container) if isinstance(container, dict) else list(range(len(container)))


def _containers(tree: Any) -> Any:
    if isinstance(tree, dict | list):
        if tree:
            yield tree
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from _containers(child)


def in_file(file: str) -> Callable[[Place, Any], None]:
    def check(place: Place, data: Any) -> None:
        own = max(each for each in place.files if each.endswith(file))
        tree = data.draw(changed_json(json.loads(place.files[own])))
        place.check({own: json.dumps(tree).encode()}, forged=True)

    return check


def in_header(file: str, key: str) -> Callable[[Place, Any], None]:
    def check(place: Place, data: Any) -> None:
        header, content = parts_of_safetensors(place.files[file])
        tree = json.loads(header["__metadata__"][key])
        header["__metadata__"][key] = json.dumps(data.draw(changed_json(tree)))
        place.check({file: safetensors_file(header, content)})

    return check


def in_tensors(file: str) -> Callable[[Place, Any], None]:
    def check(place: Place, data: Any) -> None:
        own = max(each for each in place.files if each.endswith(file))
        header, content = parts_of_safetensors(place.files[own])
        header = data.draw(changed_json(header))
        place.check({own: safetensors_file(header, content)}, forged=True)

    return check


def in_data(place: Place, data: Any) -> None:
    members = members_of(place.files["model.zip"])
    tree = json.loads(members["data"])
    # What is read of it, so that most changes matter.
    known = ("policy_class", "observation_space", "action_space", "policy_kwargs")
    part = data.draw(changed_json({key: tree[key] for key in known}))
    tree = {**{key: tree[key] for key in tree if key not in known}, **_dict(part)}
    members["data"] = json.dumps(tree).encode()
    place.check({"model.zip": zip_file(members)})
    path = place.folder / "model.zip"
    path.write_bytes(zip_file(members))
    with contextlib.suppress(ValueError):
        read_policy(path)
    path.write_bytes(place.files["model.zip"])


def _dict(tree: Any) -> dict[str, Any]:
    return tree if isinstance(tree, dict) else {"policy_class": tree}


STRUCTURES: dict[str, tuple[str, Callable[[Place, Any], None]]] = {
    "data of a model": ("model", in_data),
    "header of an encoder": ("encoder", in_header("encoder.safetensors", "header")),
    "tensors of an encoder": ("encoder", in_tensors("encoder.safetensors")),
    "progress": ("pretraining", in_header("checkpoint.safetensors", "progress")),
    "settings": ("pretraining", in_header("checkpoint.safetensors", "settings")),
    "tensors of pretraining": ("pretraining", in_tensors("checkpoint.safetensors")),
    "manifest of a checkpoint": ("run", in_file("MANIFEST.json")),
    "state": ("run", in_file("state.json")),
    "tensors of a state": ("run", in_tensors("state.safetensors")),
    "record": ("record", in_file("run.json")),
    "manifest of frames": ("frames", in_file("manifest.json")),
    "scores": ("scores", in_file("scores.json")),
}


@pytest.mark.parametrize("structure", STRUCTURES)
@settings(FEW, max_examples=40)
@given(data=st.data())
def test_changed_structures(structure: str, places: dict[str, Place], data: Any) -> None:
    name, check = STRUCTURES[structure]
    check(places[name], data)


def test_the_good_ones_are_read_and_mended(places: dict[str, Place], tmp_path: Path) -> None:
    for name, place in places.items():
        assert place.outcome({}, forged=False) is None, name
        changed = dict.fromkeys(place.files, b"\xff\xff")
        assert place.outcome(changed, forged=False) is not None, name
        shutil.copytree(place.folder, tmp_path / name)
        assert good_files(name, place.folder) == {
            path.relative_to(tmp_path / name).as_posix(): path.read_bytes()
            for path in sorted((tmp_path / name).rglob("*"))
            if path.is_file() and path.parent.name != "read"
        }
