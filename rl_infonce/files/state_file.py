"""Pack a tree of tensors, arrays and plain values into bytes that can hold no code, and unpack it.

There are two files: JSON for the tree, safetensors for its numbers. A value that JSON does not
know is an object with a single key that begins with "$".
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from rl_infonce.files.json_text import MOST_LEVELS, check_json_size, has_few_levels, parse_json

_MOST_BYTES_OF_TEXT = 2**26
_MANY = 1000
"""Numbers of a list above which they are stored as a tensor, as rewards of a long episode are."""
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class StateBytes(NamedTuple):
    """A packed tree: JSON in UTF-8, and tensors in the safetensors format."""

    text: bytes
    tensors: bytes


def pack_state(tree: Any) -> StateBytes:
    """Pack a tree of dict, list, tuple, deque, plain values, tensors and arrays.

    Every leaf comes back with the same type and bits; tensors come back on the CPU and
    contiguous. Tensors that share memory come back apart. Keys are strings or integers of any
    size; TypeError names the place of a leaf of another type, and ValueError says so of a tree
    that `unpack_state` would refuse: one with too much text or too many levels.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        packed = _pack(tree, "state", tensors)
        is_shallow = has_few_levels(packed)
    except RecursionError:
        is_shallow = False
    if not is_shallow:
        raise ValueError(
            f"Expected a state of at most {MOST_LEVELS} levels of JSON, of which a list takes one "
            "and a tuple two, got more. Keep what is nested as a flat list, each with the number "
            "of what it lies in."
        )
    text = json.dumps(packed, allow_nan=False).encode()
    check_json_size(text, most_bytes=_MOST_BYTES_OF_TEXT)
    return StateBytes(text, save(tensors))


def can_pack(tree: Any) -> bool:
    """Return whether `pack_state` takes a tree."""
    try:
        pack_state(tree)
    except (TypeError, ValueError):
        return False
    return True


def unpack_state(packed: StateBytes) -> Any:
    """Return the tree that was packed; ValueError for damaged or foreign bytes.

    Nothing is executed; memory stays within a few times the size of the bytes.
    """
    try:
        tree = parse_json(packed.text, most_bytes=_MOST_BYTES_OF_TEXT)
        return _unpack(tree, load(packed.tensors))
    except (SafetensorError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"Expected a packed state, got: {error!r:.500}.") from error


def _pack(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, bytes):
        content = torch.from_numpy(np.frombuffer(value, np.uint8).copy())
        return {"$bytes": _add(content, place, tensors)}
    if isinstance(value, torch.Tensor):
        return {"$tensor": _add(value.detach().cpu().contiguous().clone(), place, tensors)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        name = _add(torch.from_numpy(np.array(value, order="C")), place, tensors)
        return {"$array" if isinstance(value, np.ndarray) else "$scalar": name}
    if isinstance(value, Mapping):
        return _pack_mapping(value, place, tensors)
    if isinstance(value, list | tuple | deque):
        return _pack_sequence(value, place, tensors)
    raise TypeError(
        f"Expected numbers, text, tensors, arrays or containers of these at {place}, got "
        f"{type(value).__name__}."
    )


def _add(tensor: torch.Tensor, place: str, tensors: dict[str, torch.Tensor]) -> str:
    name = place
    while name in tensors:  # the key "a/b" and the keys "a", "b" spell the same place
        name += "'"
    tensors[name] = tensor
    return name


def _pack_sequence(
    value: list[Any] | tuple[Any, ...] | deque[Any], place: str, tensors: dict[str, torch.Tensor]
) -> Any:
    if type(value) is list and len(value) > _MANY and all(type(each) is float for each in value):
        return {"$floats": _add(torch.tensor(value, dtype=torch.float64), place, tensors)}
    items = [_pack(each, f"{place}/{i}", tensors) for i, each in enumerate(value)]
    if isinstance(value, deque):
        return {"$deque": [value.maxlen, *items]}
    return {"$tuple": items} if isinstance(value, tuple) else items


def _pack_mapping(value: Mapping[Any, Any], place: str, tensors: dict[str, torch.Tensor]) -> Any:
    packed = {key: _pack(each, f"{place}/{key}", tensors) for key, each in value.items()}
    if all(type(key) is str and not key.startswith("$") for key in packed):
        return packed
    for key in packed:
        if type(key) not in (str, int):
            raise TypeError(f"Expected keys of text or integers at {place}, got {key!r}.")
    return {"$dict": [[key, each] for key, each in packed.items()]}


def _unpack(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return _unpack_items(value, tensors)
    if not isinstance(value, dict):
        return value
    marks = [key for key in value if key.startswith("$")]
    if not marks:
        return {key: _unpack(each, tensors) for key, each in value.items()}
    if len(value) > 1 or marks[0] not in _UNPACKERS:
        raise ValueError(f"Expected exactly one of {sorted(_UNPACKERS)}, got {sorted(value)}.")
    return _UNPACKERS[marks[0]](value[marks[0]], tensors)


def _unpack_items(value: Any, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list, got {type(value).__name__}")
    return [_unpack(each, tensors) for each in value]


def _unpack_dict(value: Any, tensors: Mapping[str, torch.Tensor]) -> dict[Any, Any]:
    pairs = [tuple(pair) for pair in _unpack_items(value, tensors)]
    for key, _ in pairs:
        if type(key) not in (str, int):
            raise TypeError(f"a key {key!r}")
    return dict(pairs)


def _unpack_deque(value: Any, tensors: Mapping[str, torch.Tensor]) -> deque[Any]:
    most, *items = _unpack_items(value, tensors)
    return deque(items, maxlen=most)


_Unpacker = Callable[[Any, Mapping[str, torch.Tensor]], Any]
_UNPACKERS: dict[str, _Unpacker] = {
    "$float": lambda value, _tensors: _NOT_FINITE[value],
    "$bytes": lambda value, tensors: tensors[value].numpy().tobytes(),
    "$tensor": lambda value, tensors: tensors[value],
    "$array": lambda value, tensors: tensors[value].numpy(),
    "$scalar": lambda value, tensors: tensors[value].numpy()[()],
    "$floats": lambda value, tensors: tensors[value].double().flatten().tolist(),
    "$tuple": lambda *given: tuple(_unpack_items(*given)),
    "$deque": _unpack_deque,
    "$dict": _unpack_dict,
}
