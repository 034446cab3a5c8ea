"""The page of versions says what was installed and what tests said, and its script asks them."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.experiments.loading import EXPERIMENTS, RESULTS, study_page

PACKAGES = ("torch", "stable-baselines3", "sb3-contrib", "gymnasium", "ale-py", "numpy")
FOLDER = RESULTS / "versions"
ROOT = EXPERIMENTS.parent


def test_the_page_holds_the_counts_and_versions() -> None:
    page = study_page("versions/README.md")
    lines = (FOLDER / "counts.txt").read_text().splitlines()
    assert len(lines) == 8, "four Pythons, lowest and newest"
    for line in lines:
        name, _, counts = line.partition(": ")
        python, kind = name.split()
        frozen = (FOLDER / f"{python}-{kind}.txt").read_text().splitlines()
        installed = dict(each.split("==") for each in frozen if "==" in each)
        told = {name: int(n) for n, name in re.findall(r"(\d+) (\w+)", counts)}
        cells = [installed[package].partition("+")[0] for package in PACKAGES]
        outcomes = [told.get(each, 0) for each in ("passed", "failed", "skipped")]
        assert f"| {python} | {kind} | {' | '.join(map(str, [*cells, *outcomes]))} |" in page
        assert outcomes[0] > 5000
        assert outcomes[1] == 0


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("outcome", "code"), [("2 failed, 7 passed, 1 skipped", 1), ("9 passed", 0)]
)
def test_the_script_counts_what_each_environment_answers(
    outcome: str, code: int, tmp_path: Path
) -> None:
    """With a `uv` that installs nothing and a `pytest` that runs nothing."""
    fakes, output = tmp_path / "bin", tmp_path / "output"
    fakes.mkdir()
    fake(fakes, "uv", 'case "$*" in *freeze*) echo torch==2.13.0+cpu; echo numpy==2.4.6;; esac')
    fake(fakes, "pytest", f'echo "== {outcome} in 1.5s =="; exit {code}')
    environment = {**os.environ, "PATH": f"{fakes}:{os.environ['PATH']}", "OUTPUT": str(output)}
    command = ["bash", str(ROOT / "tests" / "versions.sh"), "3.10", "3.13", "--", "-m", "not slow"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    kinds = [f"{python} {kind}" for python in ("3.10", "3.13") for kind in ("lowest", "newest")]
    assert (output / "counts.txt").read_text().splitlines() == [
        f"{each}: {outcome}" for each in kinds
    ]
    counts = ["7", "2", "1"] if code else ["9", "0", "0"]
    row = ["3.13", "newest", "2.13.0", *[""] * 4, "2.4.6", *counts]
    cells = [each.strip() for each in done.stdout.splitlines()[-1].strip("|").split("|")]
    assert cells == row


def test_an_environment_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    fake(tmp_path, "uv", "exit 1")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment |= {"OUTPUT": str(tmp_path / "output"), "KINDS": "lowest"}
    command = ["bash", str(ROOT / "tests" / "versions.sh"), "3.10"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "3.10 lowest: not installed" in done.stdout
