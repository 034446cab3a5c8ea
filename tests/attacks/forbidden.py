"""Find what runs code out of a file: references in Python source, resolved through imports."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

_ALWAYS = re.compile(
    r"""(
    (builtins\.)?(eval|exec|compile|__import__|execfile)
    | (pickle|_pickle)\.(load|loads|Unpickler|_Unpickler)
    | (cloudpickle|dill|shelve|jsonpickle|runpy)(\..*)?
    | marshal\.loads?
    | joblib\.load
    | pandas\.read_pickle
    | os\.(system|popen|exec\w+|spawn\w+)
    | subprocess\.(getoutput|getstatusoutput)
    | importlib\.import_module
    | torch\.(hub|package)\..*
    | torch\.jit\.(?!is_tracing$).*
    | yaml\.(unsafe_load|full_load|load_all|unsafe_load_all|UnsafeLoader|FullLoader|Loader)
    | (stable_baselines3|sb3_contrib)\.(.*\.)?load(_from_zip_file|_from_pkl|_replay_buffer)?
    )""",
    re.VERBOSE,
)
"""Whoever needs one of these stands on the allow-list."""

_UNLESS = {
    "torch.load": ("weights_only", True),
    "numpy.load": ("allow_pickle", False),
    "numpy.lib.format.read_array": ("allow_pickle", False),
    "yaml.load": ("Loader", "yaml.SafeLoader"),
}
"""Function -> the keyword argument, written out, that makes a call harmless."""


class Finding(NamedTuple):
    """A reference to something that can run code."""

    name: str
    line: int


def forbidden_references(source: str) -> list[Finding]:
    """Return what a file refers to, called or not, that could run code out of another file."""
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    safe = {id(node.func) for node in _calls(tree) if _is_safe(node, aliases)}
    found = [
        Finding(name, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in safe
        if _is_forbidden(name := _resolved(node, aliases))
    ]
    found += [Finding(name, line) for name, line in _imported(tree) if _is_forbidden(name)]
    found += [
        Finding(f"{_resolved(node.func, aliases)} in a shell", node.lineno)
        for node in _calls(tree)
        if _resolved(node.func, aliases).startswith("subprocess.") and not _is_shellless(node)
    ]
    return sorted(set(found) | set(_fetched(tree, aliases)), key=lambda each: each.line)


def _is_forbidden(name: str) -> bool:
    return name in _UNLESS or _ALWAYS.fullmatch(name) is not None


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield the local name, the full name and the line of everything imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                full = each.name if each.asname else each.name.partition(".")[0]
                yield each.asname or full, full, node.lineno
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}", node.lineno


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    return ((local, full) for local, full, _ in _imports(tree))


def _imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield what `from x import y` names; a star may bring anything that x has."""
    for local, full, line in _imports(tree):
        if local == "*":
            module = full.removesuffix(".*")
            yield from ((f"{module}.{name}", line) for name in ("load", "loads", "system", "eval"))
        elif full not in _UNLESS:  # of these, calls are looked at
            yield full, line


def _resolved(node: ast.expr, aliases: dict[str, str]) -> str:
    """Return the dotted name of an expression, or "" if it is none."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = _resolved(node.value, aliases)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _is_safe(call: ast.Call, aliases: dict[str, str]) -> bool:
    keyword, wanted = _UNLESS.get(_resolved(call.func, aliases), ("", None))
    given = next((each.value for each in call.keywords if each.arg == keyword), None)
    if isinstance(given, ast.Constant):
        return given.value is wanted
    return given is not None and _resolved(given, aliases) == wanted


def _is_shellless(call: ast.Call) -> bool:
    return all(
        each.arg is not None
        and (
            each.arg != "shell"
            or (isinstance(each.value, ast.Constant) and each.value.value is False)
        )
        for each in call.keywords
    )


def _fetched(tree: ast.AST, aliases: dict[str, str]) -> Iterator[Finding]:
    """Yield what `getattr(module, "name")` names."""
    for call in _calls(tree):
        if _resolved(call.func, aliases) == "getattr" and len(call.args) > 1:
            owner, attribute = call.args[:2]
            if isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
                name = f"{_resolved(owner, aliases)}.{attribute.value}"
                if _is_forbidden(name):
                    yield Finding(name, call.lineno)
