"""What the pickle inside a file of torch may say, found out without executing it."""

from __future__ import annotations

import pickletools
import re
import warnings

_GLOBALS = re.compile(
    r"collections OrderedDict|torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter)"
)
_PROTOCOL = 2  # torch.save's own; torch warns of others
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
    """Raise unless a pickle says what `torch.save` writes for named tensors.

    torch's restricted unpickler runs no code of a file, but it would fill the memory with a
    `bytearray(10**12)`, and never be done with a tuple that holds itself 2**100 times over. So
    nothing is called here but what makes tensors, and only text and names are used twice.

    Raises:
        ValueError: If it says anything else, which is named, or is no pickle.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names with backslashes
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
