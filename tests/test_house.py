"""The package stays simple, and the plugin small enough to read."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rl_infonce"
PLUGIN = sorted((PACKAGE / "sb3").glob("*.py"))
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.match_case, ast.comprehension)


def n_lines(node: ast.FunctionDef | ast.ClassDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def complexity(function: ast.FunctionDef) -> int:
    """Count as McCabe, and each `for` of a comprehension, which ruff does not see."""
    return 1 + sum(isinstance(node, BRANCHES) for node in ast.walk(function))


def too_large(code: str) -> Iterator[str]:
    """Yield what exceeds a limit, and by how much."""
    sizes = [("file", "lines", len(code.splitlines()), 350)]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ClassDef):
            sizes.append((node.name, "lines", n_lines(node), 250))
        if isinstance(node, ast.FunctionDef):
            sizes.append((node.name, "lines", n_lines(node), 60))
            sizes.append((node.name, "complexity", complexity(node), 8))
    for name, measure, size, limit in sizes:
        if size > limit:
            yield f"{name}: {measure} {size} > {limit}"


@pytest.mark.parametrize("path", PLUGIN, ids=lambda path: path.name)
def test_no_part_of_the_plugin_is_too_large(path: Path) -> None:
    found = list(too_large(path.read_text(encoding="utf-8")))
    assert not found, (
        f"{path.name}: {'; '.join(found)}. Move a part into a function, a file "
        "or a lower package of its own."
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
    assert list(too_large(deep)) == ["deep: complexity 9 > 8"]
    assert list(too_large("class Long:\n" + "    x = 1\n" * 251)) == ["Long: lines 252 > 250"]
    assert list(too_large("def long():\n" + "    x = 1\n" * 60)) == ["long: lines 61 > 60"]
    assert list(too_large("x = 1\n" * 351)) == ["file: lines 351 > 350"]


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
