"""Check the pickle inside a file of `torch.save` without executing it."""

from __future__ import annotations

import pickletools
import re
import warnings

_GLOBALS = re.compile(
    r"collections OrderedDict|torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter)"
)
_PROTOCOL = 2  # torch.save writes this one; torch warns of others
_PUTS, _GETS = {"BINPUT", "LONG_BINPUT"}, {"BINGET", "LONG_BINGET"}
_OPCODES = {
    *_PUTS,
    *_GETS,
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "BINPERSID", "BINUNICODE"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS"),
}


def check_tensor_pickle(content: bytes) -> None:
    """Raise unless a pickle says only what `torch.save` writes for named tensors.

    torch's restricted unpickler runs no code of a file, but it would fill the memory with a
    `bytearray(10**12)`, and never finish a tuple that holds itself 2**100 times over. So a
    pickle may call nothing but what makes tensors, and may use nothing but text and names
    twice.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names with backslashes
        _check_opcodes(content)


def _check_opcodes(content: bytes) -> None:
    memo: dict[object, str] = {}
    latest = ""
    for opcode, argument, _ in pickletools.genops(content):
        kind = opcode.name
        if kind in _PUTS:
            memo[argument] = latest
            continue
        is_shared = kind in _GETS and memo.get(argument) not in ("BINUNICODE", "GLOBAL")
        if kind not in _OPCODES or is_shared or (kind == "PROTO" and argument != _PROTOCOL):
            raise ValueError(f"the opcode {kind}")
        if kind == "GLOBAL" and not _GLOBALS.fullmatch(str(argument)):
            raise ValueError(str(argument).replace(" ", "."))
        latest = kind
