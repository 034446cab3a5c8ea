"""What the README prints works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce.cli import make_parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def small(block: str) -> str:
    """Shrink the budget, and nothing else, of a python block."""
    block = re.sub(r'PPO\(\s*"CnnPolicy",', 'PPO("CnnPolicy", n_steps=64, n_epochs=1, env=', block)
    return re.sub(r"100_000|2_048", "512", block).replace("n_envs=8", "n_envs=2")


def test_there_are_the_blocks_this_file_runs() -> None:
    assert len(blocks("bash")) == 2
    assert len(blocks("python")) == 3


@pytest.mark.atari
@pytest.mark.parametrize("index", [0, 1, 2])
def test_python_blocks_run(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(small(blocks("python")[index]), "README.md", "exec"), names)
    if index == 0:
        events = EventAccumulator(str(tmp_path / "logs" / "PPO_1")).Reload()
        assert {"infonce/loss", "infonce/accuracy_k4"} <= set(events.Tags()["scalars"])


def test_every_curve_of_the_table_is_explained_once() -> None:
    table = README.split("## Reading the curves")[1].split("## Options")[0]
    named = re.findall(r"`(\w+)`", table.split("|---|---|")[1])
    for tag in ("loss", "accuracy_k4", "floor_pixels_k4", "mi_lower_bound", "grad_cosine"):
        assert tag in named


def test_the_first_command_is_one_the_command_line_takes() -> None:
    command = blocks("bash")[0].splitlines()[-1].split()
    assert command[0] == "rl-infonce"
    assert make_parser().parse_args(command[1:]).game == "pong"


def test_ci_runs_exactly_the_second_command() -> None:
    command = blocks("bash")[1].strip()
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == f"exec {command}"
    assert (ROOT / command.removeprefix("bash ")).exists()
