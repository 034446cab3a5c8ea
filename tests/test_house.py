"""The package stays simple, and the plugin small enough to read."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "rl_infonce"
PLUGIN = sorted((PACKAGE / "sb3").glob("*.py"))
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.match_case, ast.comprehension)


def n_lines(node: ast.FunctionDef | ast.ClassDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def complexity(function: ast.FunctionDef) -> int:
    """Count as McCabe, and each `for` of a comprehension, which ruff does not see."""
    return 1 + sum(isinstance(node, BRANCHES) for node in ast.walk(function))


def too_large(code: str) -> Iterator[str]:
    """Yield what exceeds a limit of lines, and by how much."""
    sizes = [("file", len(code.splitlines()), 350)]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ClassDef):
            sizes.append((node.name, n_lines(node), 250))
        if isinstance(node, ast.FunctionDef):
            sizes.append((node.name, n_lines(node), 60))
    for name, size, limit in sizes:
        if size > limit:
            yield f"{name}: {size} lines > {limit}"


def test_no_part_of_the_plugin_is_too_large() -> None:
    found = [
        f"{path.name}: {each}"
        for path in PLUGIN
        for each in too_large(path.read_text(encoding="utf-8"))
    ]
    assert not found, (
        f"{'; '.join(found)}. Move a part into a function, a file or a lower package of its own."
    )


def test_no_function_of_the_package_is_too_complex() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {node.name} has {complexity(node)}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and complexity(node) > 8
    ]
    assert not found, f"Expected a complexity of at most 8. Split these functions: {found}"


def test_what_is_too_large_is_found() -> None:
    deep = "def deep(x):\n" + "".join(f"    if x: x = [a for a in {i}]\n" for i in range(4))
    (function,) = ast.parse(deep).body
    assert isinstance(function, ast.FunctionDef)
    assert complexity(function) == 9
    assert list(too_large("class Long:\n" + "    x = 1\n" * 251)) == ["Long: 252 lines > 250"]
    assert list(too_large("def long():\n" + "    x = 1\n" * 60)) == ["long: 61 lines > 60"]
    assert list(too_large("x = 1\n" * 351)) == ["file: 351 lines > 350"]


def test_nothing_is_kept_in_the_modules_of_the_plugin() -> None:
    """A dict, list or set of a module that a function fills would outlive the algorithm."""
    for path in PLUGIN:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            is_empty = (isinstance(value, ast.Dict) and not value.keys) or (
                isinstance(value, ast.List) and not value.elts
            )
            made = isinstance(value, ast.Call) and "Weak" in ast.dump(value.func)
            way_out = f"{path.name}:{node.lineno} outlives its algorithm. Keep it in the extractor."
            assert not is_empty, way_out
            assert not made, way_out
