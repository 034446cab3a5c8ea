"""Experiments call what stands behind the command line, and not the command line."""

import ast
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SCRIPTS = sorted(EXPERIMENTS.rglob("*.py"))
CLI = "rl_infonce.cli"


def imported(source: str) -> set[str]:
    """Return the full names of what a script imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def uses_cli(source: str) -> bool:
    return any(f"{name}.".startswith(f"{CLI}.") for name in imported(source))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_no_experiment_imports_the_command_line(path: Path) -> None:
    assert not uses_cli(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "import rl_infonce.cli",
        "from rl_infonce import cli",
        "from rl_infonce.cli import main",
        "def f():\n    from rl_infonce.cli.train import run",
    ],
)
def test_every_way_to_import_it_is_seen(source: str) -> None:
    assert SCRIPTS
    assert uses_cli(source)
