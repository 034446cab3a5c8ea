"""Several ranks train what one process trains, stop together, and go on after a kill."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from rl_infonce.device import has_fast_bf16
from rl_infonce.pretraining import OBJECTIVES, Budget, FrameBatch, PretrainingSettings, pretrain
from rl_infonce.pretraining.batches import batch_of_rows
from rl_infonce.pretraining.ranks import Ranks, check_same_on_ranks, checksum, name_of_life
from rl_infonce.pretraining.trainer import CHECKPOINT
from tests.experiments.loading import load
from tests.further import further
from tests.pretraining import failing_rank
from tests.pretraining.forked import ENVIRONMENT, ROOT, Helper

pytestmark = pytest.mark.slow

# Where bf16 is emulated it takes minutes, and rounds a product more often than the bounds below.
HALF = ("bf16",) if has_fast_bf16(torch.device("cpu")) else ()
PRECISIONS_OF_RANKS = {1: ("fp32", *HALF), 4: ("fp32",), **({2: HALF} if HALF else {})}
TOLERANCES = {  # gradients of bf16 are rounded to 8 bits once per rank, then Adam spreads that
    "fp32": {"loss": 1e-5, "first gradient": 1e-5, "last gradient": 1e-5, "weight": 1e-5},
    "bf16": {"loss": 1e-2, "first gradient": 1e-2, "last gradient": 0.3, "weight": 2e-3},
}


@pytest.fixture(scope="module")
def helper() -> Iterator[Helper]:
    with closing(Helper()) as helper:
        yield helper


@pytest.mark.thorough
def test_ranks_train_what_one_process_trains(helper: Helper, tmp_path: Path) -> None:
    """One test, as workers of pytest that each had a part would all train everything."""
    for n_ranks, precisions in PRECISIONS_OF_RANKS.items():
        folder = tmp_path / str(n_ranks)
        folder.mkdir()
        flags = ("--encoder", "nature", "--n-steps", "2", "--smooth", "--precisions", *precisions)
        assert helper.run("distributed_rank", n_ranks, folder, *flags) == [0] * n_ranks
    arms = [(n, each) for n, precisions in PRECISIONS_OF_RANKS.items() for each in precisions]
    wrong = {
        (name, n_ranks, precision): found
        for name in OBJECTIVES
        for n_ranks, precision in arms
        if n_ranks > 1 and (found := beyond_tolerance(tmp_path, name, n_ranks, precision))
    }
    assert wrong == {}


def beyond_tolerance(folder: Path, name: str, n_ranks: int, precision: str) -> dict[str, Any]:
    """Return what ranks and one process differ in by more than rounding."""
    script = load("distributed.py")
    alone = script.read(folder / "1", name, precision)
    first = script.read(folder / str(n_ranks), name, precision)
    assert len(alone["train_losses"]) == len(alone["validation_losses"]) == 2
    assert len(alone["gradients"]) == 2
    found = script.differences(alone, first)
    tolerances = TOLERANCES[precision]
    assert found.keys() == tolerances.keys()
    others = [script.read(folder / str(n_ranks), name, precision, rank) for rank in range(n_ranks)]
    sums = {each["checksum"] for each in others}
    is_same_on_ranks = sums == {checksum(first["weights"].values())}
    wrong = {} if is_same_on_ranks else {"checksums": sums}
    return wrong | {key: value for key, value in found.items() if not value <= tolerances[key]}


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


UNEVEN = (
    "Expected `batch_size` to be a multiple of the {} ranks, got {}. "
    "Take {}, or another number of ranks."
)


@pytest.mark.parametrize(
    ("n_ranks", "batch_size", "n_frames", "message"),
    [
        (4, 6, 40, UNEVEN.format(4, 6, 8)),
        (4, 2, 40, UNEVEN.format(4, 2, 4)),
        (2, 5, 40, UNEVEN.format(2, 5, 6)),
        (4, 8, 7, r"training part is too short. .* at least 8 .* got 6\."),
    ],
)
def test_a_batch_that_ranks_cannot_share_or_fill_is_refused(
    monkeypatch: pytest.MonkeyPatch, n_ranks: int, batch_size: int, n_frames: int, message: str
) -> None:
    monkeypatch.setattr(Ranks, "here", lambda: Ranks(0, n_ranks))
    frames, settings = failing_rank.frames(n_frames), PretrainingSettings(batch_size=batch_size)
    with pytest.raises(ValueError, match=message):
        pretrain(failing_rank.objective(), frames, frames, Budget(n_steps=1), settings)


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


def fail(helper: Helper, scenario: str, folder: Path) -> list[dict[str, Any]]:
    """Run a scenario of failing_rank.py and return what each rank ended with."""
    codes = helper.run("failing_rank", 2, folder, scenario)
    assert codes == [0, -signal.SIGKILL if scenario == "dies" else 0]
    paths = [folder / f"{rank}.json" for rank in range(2)]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def test_ranks_that_differ_or_meet_nan_stop_together(helper: Helper, tmp_path: Path) -> None:
    first, second = fail(helper, "together", tmp_path)
    assert first.keys() == second.keys() == failing_rank.TOGETHER.keys()
    for name, expected in failing_rank.TOGETHER.items():
        kind, message = first[name]
        assert second[name] == first[name], "all ranks say the same"
        assert expected in f"{kind}: {message}"


@pytest.mark.parametrize("scenario", [further("raises"), "dies", further("hangs")])
def test_a_rank_that_is_lost_is_named_at_once(
    helper: Helper, tmp_path: Path, scenario: str
) -> None:
    found = fail(helper, scenario, tmp_path)
    kind, message, seconds = found[0][scenario]
    assert kind == "ConnectionError"
    assert "Expected all 2 ranks to go on, but another one than rank 0 stopped" in message
    assert seconds < 20  # far from 30 minutes, torch's own timeout
    assert len(found) == (1 if scenario == "dies" else 2)
    if scenario == "raises":
        assert found[1][scenario][:2] == ["OSError", "the disk is gone"]


def torchrun(*arguments: str) -> None:
    """Run killed_rank.py on two ranks."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    module = ("-m", "tests.pretraining.killed_rank", *arguments)
    command = [sys.executable, *launcher, "--max-restarts", "1", *module]
    answer = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr[-3000:]


def steps(folder: Path) -> list[list[int]]:
    """Return the steps that each life of the first rank took."""
    lives = sorted(folder.glob("steps-*.txt"))
    return [[int(step) for step in life.read_text().split()] for life in lives]


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.thorough
def test_torchrun_goes_on_from_the_last_checkpoint_after_a_kill(
    helper: Helper, tmp_path: Path
) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    assert helper.run("killed_rank", 2, tmp_path / "whole") == [0, 0]
    assert steps(tmp_path / "whole") == [list(range(1, 11))]
    torchrun(str(tmp_path / "killed"), "--die-after", "7")
    before, after = steps(tmp_path / "killed")
    assert before in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7])
    assert after == [7, 8, 9, 10], "validations, and checkpoints, were after 3, 6, 8 and 10 steps"
    whole, killed = (load_file(tmp_path / name / CHECKPOINT) for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert {key for key, tensor in whole.items() if not torch.equal(tensor, killed[key])} == set()
    start = failing_rank.objective("vae").encoder.state_dict()
    assert not any(torch.equal(tensor, whole[f"best.{key}"]) for key, tensor in start.items())
    threads = [path.read_text() for path in (tmp_path / "killed").glob("threads-*.txt")]
    assert len(threads) == (2 if sys.platform == "linux" else 0)
    assert not any("gloo" in names for names in threads), "one may abort the end of Python"
