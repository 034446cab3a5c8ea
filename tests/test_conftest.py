"""The suite tidies up after itself, however pytest was called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAINS = "tests/sb3/test_control_arms.py::test_augmentation_alone_trains[PPO]"  # SB3 logs somewhere


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
