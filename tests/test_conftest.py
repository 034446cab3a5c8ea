"""The suite tidies up after itself, however pytest was called."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TRAINS = "tests/sb3/test_control_arms.py::test_augmentation_alone_trains[PPO]"  # SB3 logs somewhere


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("n_workers", ["0", "1"])
def test_nothing_is_left_in_the_systems_temporary_folder(tmp_path: Path, n_workers: str) -> None:
    own = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", n_workers]
    answer = subprocess.run(
        [*command, TRAINS],
        cwd=ROOT,
        env={**own, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "1 passed" in answer.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"thorough": False, "markexpr": ""}, ["first"]),
        ({"thorough": True, "markexpr": ""}, ["first", "further"]),
        ({"thorough": False, "markexpr": "thorough"}, ["first", "further"]),
    ],
)
def test_further_cases_run_where_they_are_asked_for(
    request: pytest.FixtureRequest, options: dict[str, Any], expected: list[str]
) -> None:
    hooks: Any = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    items = [
        SimpleNamespace(name=name, get_closest_marker={mark: True}.get)
        for name, mark in (("first", "slow"), ("further", "thorough"))
    ]
    left_out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    config = SimpleNamespace(getoption=options.get, hook=hook)
    hooks.pytest_collection_modifyitems(config, items)
    assert [item.name for item in items] == expected
    assert len(items) + len(left_out) == 2
