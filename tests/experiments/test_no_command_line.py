"""Experiments call what stands behind the command line, and not the command line."""

import re

from tests.experiments.loading import EXPERIMENTS

SCRIPTS = sorted(EXPERIMENTS.rglob("*.py"))
IMPORT = re.compile(r"\brl_infonce(\.| import (.*\b)?)cli\b")


def test_no_experiment_imports_the_command_line() -> None:
    assert SCRIPTS
    assert not [path for path in SCRIPTS if IMPORT.search(path.read_text(encoding="utf-8"))]
