"""Output that nobody reads, or that finds no room, ends no work."""

import argparse
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from rl_infonce.cli.arguments import shows_progress
from rl_infonce.cli.output import lasting_output, plain_warnings

RUN = "import sys; from rl_infonce.cli import main; sys.exit(main(sys.argv[1:]))"
TRAIN = ("train", "--env", "CartPole-v1", "-n", "64", "--n-envs", "1", "-params", "n_steps:32")


def ended(stdout: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def unread(*words: str) -> subprocess.CompletedProcess[str]:
    """Return how a command ends whose output goes into a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    try:
        return ended(write, *words)
    finally:
        os.close(write)


def test_a_help_that_nobody_reads_ends_quietly() -> None:
    process = unread("train", "--help")
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_training_whose_output_nobody_reads_ends_well(tmp_path: Path) -> None:
    process = unread(*TRAIN, "--run-dir", str(tmp_path / "run"))
    assert (process.returncode, process.stderr) == (0, "")
    assert (tmp_path / "run" / "model.zip").is_file()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_training_whose_output_finds_no_room_is_saved_and_says_so(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        process = ended(full.fileno(), *TRAIN, "--run-dir", str(tmp_path / "run"))
    assert process.returncode == 1
    assert process.stderr.startswith("rl-infonce: not all output was written: [Errno 28]")
    assert (tmp_path / "run" / "model.zip").is_file()


def test_where_errors_are_closed_no_bar_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert not shows_progress(argparse.Namespace(progress=None, quiet=False))


def test_a_command_whose_output_is_closed_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with lasting_output() as output:
        assert sys.stdout.write("unseen") == 6
        sys.stdout.flush()
        assert not sys.stdout.isatty()
    assert output.error is None
    assert sys.stdout is None


def test_warnings_are_sentences() -> None:
    with plain_warnings():
        shown = warnings.formatwarning("The buffer is small.", UserWarning, "agent.py", 7)
    assert shown == "Warning: The buffer is small.\n"
    assert "agent.py" in warnings.formatwarning("The buffer is small.", UserWarning, "agent.py", 7)
