import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rl_infonce.nce import contrast, gather
from tests.nce import gather_rank

pytestmark = pytest.mark.slow

N_RANKS = 3
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    """What each of three processes saw."""
    directory = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.nce.gather_rank"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen([*command, str(rank), str(N_RANKS), directory], cwd=ROOT, env=environment)
        for rank in range(N_RANKS)
    ]
    try:
        codes = [process.wait(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * N_RANKS
    return [torch.load(directory / f"{rank}.pt") for rank in range(N_RANKS)]


@pytest.mark.parametrize("name", ["one_way", "both_ways"])
def test_gather_gives_losses_and_gradients_of_the_large_batch(
    ranks: list[dict[str, Tensor]], name: str
) -> None:
    large = gather_rank.batch(N_RANKS)
    sides = large["anchors"].requires_grad_(), large["candidates"].requires_grad_()
    losses = contrast(
        *sides,
        episodes=large["episodes"],
        times=large["times"],
        min_gap=2,
        symmetric=name == "both_ways",
        tile=None,
    )
    gradients = torch.autograd.grad(losses, sides, large["upstream"])
    for key, expected in [
        (name, losses.detach()),
        (f"{name}_anchors", gradients[0]),
        (f"{name}_candidates", gradients[1]),
    ]:
        gathered = torch.cat([rank[key] for rank in ranks])
        torch.testing.assert_close(gathered, expected, rtol=1e-9, atol=1e-9)


def test_gather_keeps_the_order_of_ranks(ranks: list[dict[str, Tensor]]) -> None:
    for rank in ranks:
        assert torch.equal(rank["gathered_episodes"], gather_rank.batch(N_RANKS)["episodes"])


def test_gather_sums_half_precision_in_float32(ranks: list[dict[str, Tensor]]) -> None:
    assert [rank["half"].dtype for rank in ranks] == [torch.bfloat16] * N_RANKS
    assert [rank["half"].item() for rank in ranks] == [258.0] * N_RANKS


def test_gather_can_be_differentiated_twice(ranks: list[dict[str, Tensor]]) -> None:
    assert [rank["second"].item() for rank in ranks] == [N_RANKS * 2 * 3.0] * N_RANKS


def test_gather_refuses_ranks_of_different_shape(ranks: list[dict[str, Tensor]]) -> None:
    assert all(bool(rank["refused"]) for rank in ranks)


def test_gather_alone_returns_the_tensor_itself() -> None:
    rows = torch.zeros(2, 3, requires_grad=True)
    assert gather(rows) is rows


def test_gather_refuses_a_tensor_without_rows() -> None:
    with pytest.raises(ValueError, match=r"`tensor` of shape \[B, \.\.\.\], got \(\)"):
        gather(torch.tensor(1.0))
