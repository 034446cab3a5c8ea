"""Several ranks train what one process trains, stop together, and go on after a kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from rl_infonce.pretraining import (
    OBJECTIVES,
    Budget,
    FrameBatch,
    PretrainingSettings,
    pretrain,
)
from rl_infonce.pretraining.batches import batch_of_rows
from rl_infonce.pretraining.ranks import Ranks, check_same_on_ranks, checksum, name_of_life
from rl_infonce.pretraining.trainer import CHECKPOINT
from tests.experiments.loading import load
from tests.pretraining import failing_rank

ROOT = Path(__file__).parents[2]
PRECISIONS_OF_RANKS = {1: ("fp32", "bf16"), 2: ("fp32", "bf16"), 4: ("fp32",)}
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "ignore",
}
TOLERANCES = {  # gradients of bf16 are rounded to 8 bits once per rank, then Adam spreads that
    "fp32": {"loss": 1e-5, "first gradient": 1e-5, "last gradient": 2e-5, "weight": 1e-5},
    "bf16": {"loss": 1e-2, "first gradient": 1e-2, "last gradient": 0.3, "weight": 2e-3},
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process and several ranks saw of every objective, on small images."""
    folder = tmp_path_factory.mktemp("seen")
    script = load("distributed.py")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        for n_ranks, precisions in PRECISIONS_OF_RANKS.items():
            flags = ("--encoder", "nature", "--n-steps", "2", "--precisions", *precisions)
            script.run_ranks(n_ranks, folder / str(n_ranks), *flags)
    return folder


@pytest.mark.parametrize(
    ("n_ranks", "precision"),
    [(n, each) for n, precisions in PRECISIONS_OF_RANKS.items() if n > 1 for each in precisions],
)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_ranks_train_what_one_process_trains(
    seen: Path, name: str, n_ranks: int, precision: str
) -> None:
    script = load("distributed.py")
    alone = script.read(seen / "1", name, precision)
    first = script.read(seen / str(n_ranks), name, precision)
    assert len(alone["train_losses"]) == len(alone["validation_losses"]) == 2
    assert len(alone["gradients"]) == 2
    found = script.differences(alone, first)
    tolerances = TOLERANCES[precision]
    assert found.keys() == tolerances.keys()
    assert {key: value for key, value in found.items() if not value <= tolerances[key]} == {}
    others = [script.read(seen / str(n_ranks), name, precision, rank) for rank in range(n_ranks)]
    assert {each["checksum"] for each in others} == {checksum(first["weights"].values())}


@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_noise_depends_on_the_batch_and_not_on_who_shares_it(n_ranks: int) -> None:
    frames = failing_rank.frames(40)
    rows = np.arange(8)[:, None]
    batches = [
        batch_of_rows(frames, rows, 5, Ranks(rank, n_ranks), torch.device("cpu"))
        for rank in range(n_ranks)
    ]
    found = torch.cat([batch.normal(3) for batch in batches])
    assert torch.equal(found, torch.randn(8, 3, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(FrameBatch(torch.zeros(8, 1), seed=5).normal(3), found)


@pytest.mark.parametrize(("batch_size", "n_ranks", "way_out"), [(6, 4, 8), (2, 4, 4), (5, 2, 6)])
def test_a_batch_that_ranks_cannot_share_evenly_is_refused(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, n_ranks: int, way_out: int
) -> None:
    monkeypatch.setattr(Ranks, "here", lambda: Ranks(0, n_ranks))
    frames = failing_rank.frames(40)
    message = (
        f"Expected `batch_size` to be a multiple of the {n_ranks} ranks, got {batch_size}. "
        f"Take {way_out}, or another number of ranks."
    )
    with pytest.raises(ValueError, match=message):
        pretrain(
            failing_rank.objective(),
            frames,
            frames,
            Budget(n_steps=1),
            PretrainingSettings(batch_size=batch_size),
        )


def test_too_few_frames_for_the_batch_of_all_ranks_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ranks, "here", lambda: Ranks(0, 4))
    few = failing_rank.frames(7)
    with pytest.raises(ValueError, match=r"training part is too short. .* at least 8 .* got 6\."):
        pretrain(
            failing_rank.objective(), few, few, Budget(n_steps=1), PretrainingSettings(batch_size=8)
        )


def test_ranks_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = torch.tensor([[1, 5], [1, 5], [1, 5]])
    monkeypatch.setattr("rl_infonce.pretraining.ranks.gather", lambda own: found)
    check_same_on_ranks({"x": 1, "y": 5}, torch.device("cpu"))
    found[2, 1] = 6
    with pytest.raises(ValueError, match=r"the same y on every rank, .* others than on \[2\]"):
        check_same_on_ranks({"x": 1, "y": 5}, torch.device("cpu"))


@pytest.mark.parametrize(
    "change", [[torch.tensor([1.0, 2.0])], [torch.tensor([2.0, 1.0])], [np.array([1])], [{"a": 1}]]
)
def test_checksums_tell_values_apart(change: list[Any]) -> None:
    assert checksum(change) == checksum(change)
    assert checksum(change) != checksum([torch.tensor([1.0, 2.5])])
    assert checksum([{"a": 1, "b": 2}]) == checksum([{"b": 2, "a": 1}])


def test_the_living_agree_on_a_name_whatever_the_dead_left() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    wait = timedelta(seconds=20)
    names: list[set[str]] = []
    for _ in range(3):  # lives
        with ThreadPoolExecutor(3) as ranks:
            waiting = [ranks.submit(name_of_life, store, rank, 3, wait) for rank in (1, 2)]
            time.sleep(0.2)  # in which they find what the last life left
            first = name_of_life(store, 0, 3, wait)
            names.append({first, *(each.result() for each in waiting)})
    assert [len(each) for each in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3
    with pytest.raises(TimeoutError, match="the first of 3 ranks to answer rank 2 within"):
        name_of_life(store, 2, 3, timedelta(seconds=0.1))


def fail(scenario: str, folder: Path) -> list[dict[str, Any]]:
    """Run a scenario of failing_rank.py and return what each rank ended with."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, "-m", "tests.pretraining.failing_rank", str(folder), scenario]
    environments = [
        {**ENVIRONMENT, **meeting, "RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)
    ]
    processes = [subprocess.Popen(command, cwd=ROOT, env=each) for each in environments]
    try:
        codes = [process.wait(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, -signal.SIGKILL if scenario == "dies" else 0]
    paths = [folder / f"{rank}.json" for rank in range(2)]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def test_ranks_that_differ_or_meet_nan_stop_together(tmp_path: Path) -> None:
    first, second = fail("together", tmp_path)
    assert first.keys() == second.keys() == failing_rank.TOGETHER.keys()
    for name, expected in failing_rank.TOGETHER.items():
        kind, message = first[name]
        assert second[name] == first[name], "all ranks say the same"
        assert expected in f"{kind}: {message}"
    threads = [json.loads(path.read_text()) for path in tmp_path.glob("threads-*.json")]
    assert len(threads) == (2 if sys.platform == "linux" else 0)
    assert not any("gloo" in name for names in threads for name in names), "one may abort the end"


@pytest.mark.parametrize("scenario", ["raises", "dies", "hangs"])
def test_a_rank_that_is_lost_is_named_at_once(tmp_path: Path, scenario: str) -> None:
    found = fail(scenario, tmp_path)
    kind, message, seconds = found[0][scenario]
    assert kind == "ConnectionError"
    assert "Expected all 2 ranks to go on, but another one than rank 0 stopped" in message
    assert seconds < 20  # far from 30 minutes, torch's own timeout
    assert len(found) == (1 if scenario == "dies" else 2)
    if scenario == "raises":
        assert found[1][scenario][:2] == ["OSError", "the disk is gone"]


def torchrun(folder: Path, *arguments: str) -> list[list[int]]:
    """Run killed_rank.py on two ranks; return the steps that each life of the first one took."""
    folder.mkdir()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    module = ("-m", "tests.pretraining.killed_rank", str(folder), *arguments)
    command = [sys.executable, *launcher, "--max-restarts", "1", *module]
    answer = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    lives = sorted(folder.glob("steps-*.txt"))
    return [[int(step) for step in life.read_text().split()] for life in lives]


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_torchrun_goes_on_from_the_last_checkpoint_after_a_kill(tmp_path: Path) -> None:
    (in_peace,) = torchrun(tmp_path / "whole")
    assert in_peace == list(range(1, 11))
    before, after = torchrun(tmp_path / "killed", "--die-after", "7")
    assert before in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7])
    assert after == [7, 8, 9, 10], "validations, and checkpoints, were after 3, 6, 8 and 10 steps"
    whole, killed = (load_file(tmp_path / name / CHECKPOINT) for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert {key for key, tensor in whole.items() if not torch.equal(tensor, killed[key])} == set()
    start = failing_rank.objective("vae").encoder.state_dict()
    assert not any(torch.equal(tensor, whole[f"best.{key}"]) for key, tensor in start.items())
