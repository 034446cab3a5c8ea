"""A tree of state comes back to the last bit, and bytes that are none are refused."""

import functools
import json
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rl_infonce.files.state_file import StateBytes, pack_state, unpack_state

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    hnp.arrays(
        st.sampled_from([np.uint8, np.int64, np.uint32, np.float32, np.float64, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
    ),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]).map(
        lambda dtype: torch.ones(2, 3, dtype=dtype)
    ),
    st.floats(width=32).map(np.float32),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=5)),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers()), inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "a/b", "b", "$tensor", "a/b'"]), inner, max_size=4),
    ),
    max_leaves=12,
)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple | deque):
        assert len(one) == len(other)
        assert getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray | np.generic):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, float):
        assert one == other or (math.isnan(one) and math.isnan(other))
        assert math.copysign(1, one) == math.copysign(1, other) or math.isnan(one)
    else:
        assert one == other


@settings(max_examples=200, deadline=None)
@given(TREES)
def test_every_tree_comes_back(tree: Any) -> None:
    assert_same(unpack_state(pack_state(tree)), tree)


def test_random_streams_come_back() -> None:
    generator = np.random.default_rng(3)
    generator.integers(10, dtype=np.uint32)  # leaves half a number behind
    tree = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (the host's own stream)
        "generator": generator.bit_generator.state,
        "torch": torch.get_rng_state(),
    }
    assert_same(unpack_state(pack_state(tree)), tree)


def test_tensors_that_share_memory_or_lie_in_strides_come_back_apart() -> None:
    base = torch.arange(6.0).view(2, 3)
    found = unpack_state(pack_state({"base": base, "column": base[:, 1], "again": base}))
    assert torch.equal(found["column"], torch.tensor([1.0, 4.0]))
    found["base"].zero_()
    assert found["again"].sum() == 15


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [1, {2}]}, "at state/a/1, got set"),
        ({"f": print}, "at state/f, got builtin_function_or_method"),
        ({(1, 2): 3}, r"keys of text or integers at state, got \(1, 2\)"),
        ({"o": np.array([object()])}, "at state/o, got ndarray"),
    ],
)
def test_what_cannot_be_packed_is_named(tree: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pack_state(tree)


GOOD = pack_state({"a": torch.ones(3), "b": (1, 2.5), 3: deque([1], maxlen=2)})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff",
        b'{"$tensor": "nowhere"}',
        b'{"$tensor": 3}',
        b'{"$tensor": ["state/a"]}',
        b'{"$code": "print()"}',
        b'{"$tuple": [], "more": 1}',
        b'{"$tuple": 3}',
        b'{"$float": "1e3"}',
        b'{"$float": []}',
        b'{"$bytes": "xy"}',
        b'{"$bytes": 3}',
        b'{"$deque": []}',
        b'{"$deque": ["x", 1]}',
        b'{"$deque": [-1, 1]}',
        b'{"$dict": [[1]]}',
        b'{"$dict": [[[], 1]]}',
        b'{"$dict": [[1.5, 1]]}',
        b'{"$dict": 1}',
        b"[NaN]",
        b"[" * 101 + b"]" * 101,
        b"[" * 100_000,
        b"1" * 5000,
    ],
)
def test_other_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack_state(StateBytes(text, GOOD.tensors))


def test_tensors_cut_short_are_refused() -> None:
    for n_bytes in range(len(GOOD.tensors)):
        with pytest.raises(ValueError, match="Expected a packed state"):
            unpack_state(StateBytes(GOOD.text, GOOD.tensors[:n_bytes]))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_is_refused_or_changes_numbers_alone(data: Any) -> None:
    whole = bytearray(GOOD.text + GOOD.tensors)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    length = len(GOOD.text)
    try:
        unpack_state(StateBytes(bytes(whole[:length]), bytes(whole[length:])))
    except ValueError:
        return


def test_text_of_any_size_is_measured_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_infonce.files.state_file._MOST_BYTES_OF_TEXT", 10)
    with pytest.raises(ValueError, match="at most 10 bytes of JSON, got 11"):
        unpack_state(StateBytes(json.dumps("x" * 9).encode(), GOOD.tensors))


def test_bytes_are_no_text_and_come_back() -> None:
    content = bytes(range(256)) * 4096
    packed = pack_state({"emulator": content, "nothing": b""})
    assert len(packed.text) < 200
    assert unpack_state(packed) == {"emulator": content, "nothing": b""}


def test_what_could_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_infonce.files.state_file._MOST_BYTES_OF_TEXT", 1600)
    unpack_state(pack_state(list(range(99))))
    with pytest.raises(ValueError, match="at most 100 values of JSON, got 101"):
        pack_state(list(range(101)))
    with pytest.raises(ValueError, match="at most 1,600 bytes of JSON"):
        pack_state("x" * 1600)


@pytest.mark.parametrize(
    ("nest", "most"),
    [
        (lambda inner: [inner], 100),
        (lambda inner: {"a": inner}, 100),
        (lambda inner: (inner,), 50),
        (lambda inner: deque([inner]), 50),
        (lambda inner: {1: inner}, 33),
    ],
)
def test_what_is_packed_is_shallow_enough_to_be_read(nest: Callable[[Any], Any], most: int) -> None:
    tree = functools.reduce(lambda inner, _: nest(inner), range(most), 1)
    assert_same(unpack_state(pack_state(tree)), tree)
    deep = functools.reduce(lambda inner, _: nest(inner), range(5000), 1)
    for more in (nest(tree), deep):
        with pytest.raises(ValueError, match=r"at most 100 levels.*flat list"):
            pack_state(more)


def test_what_holds_itself_is_refused() -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(ValueError, match="at most 100 levels"):
        pack_state(tree)


def test_many_numbers_are_no_text() -> None:
    rewards = [*map(float, range(2000)), -0.0, math.nan, 5e-324]
    packed = pack_state({"rewards": rewards})
    assert len(packed.text) < 100
    assert_same(unpack_state(packed), {"rewards": rewards})
