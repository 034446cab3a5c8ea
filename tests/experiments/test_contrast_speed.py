"""The speed comparison runs, without the peers it compares with."""

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.experiments.loading import EXPERIMENTS, load


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, its uninstalled peers replaced by a loss of its own."""
    contrast_speed = load("benchmarks/contrast_speed.py")
    for peer in ("info_nce_pytorch", "metric_learning"):
        monkeypatch.setattr(contrast_speed, peer, lambda: contrast_speed.two_products)
    return contrast_speed


def test_contrast_speed_times_every_arm_at_every_size(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "memory_in_process", lambda name, n: 12.3)
    summary = script.compare([4, 8], rounds=2, memory_size=1024)
    small, large = (summary["times"][n]["median"] for n in ("4", "8"))
    assert set(small) == {*large, "NTXentLoss"}
    assert {"ours, one way", "ours, symmetric", "two products"} < set(large)
    assert all(arm["ms"] > 0 for arm in large.values())
    assert large["two products"]["speed_ratio"] == 1.0
    assert script.table(summary).splitlines()[-1].startswith("| 8 | ")
    assert script.table(summary).splitlines()[-1].endswith("| - |")
    assert "| ours, one way | 12 MB | 4 MB |" in script.memory_table(summary)


def test_contrast_speed_tells_the_distance_from_the_least_arithmetic(script: ModuleType) -> None:
    medians = {"ours, one way": {"ms": 3.0}, "ours, symmetric": {"ms": 6.0}}
    summary = {
        "dim": 100,
        "machine": {"matmul_gflop_per_second": 300.0},
        "times": {"1000": {"median": medians}},
    }
    # 6e8 operations at 3e11 per second
    assert script.limits_table(summary).splitlines()[-1] == "| 1,000 | 2.00 ms | 1.5x | 3.0x |"


def test_contrast_speed_divides_by_the_peer_of_the_same_round(script: ModuleType) -> None:
    runs: list[dict[str, float]] = [
        {"ours, symmetric": 1.0, "two products": 3.0},
        {"ours, symmetric": 2.0, "two products": 2.0},
        {"ours, symmetric": 4.0, "two products": 8.0},
    ]
    found: dict[str, Any] = script.medians(runs)["ours, symmetric"]
    assert found == {"ms": 2.0, "speed_ratio": 2.0, "lowest_ratio": 1.0, "highest_ratio": 3.0}


def test_contrast_speed_compares_equal_losses(script: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    anchors, candidates = torch.randn(2, 9, 5, generator=generator)
    symmetric = script.ours(symmetric=True)(anchors, candidates)
    torch.testing.assert_close(symmetric, script.two_products(anchors, candidates))
    if hasattr(torch.nn.functional, "linear_cross_entropy"):
        one_way = script.ours(symmetric=False)(anchors, candidates)
        torch.testing.assert_close(one_way, script.linear_cross_entropy(anchors, candidates))


@pytest.mark.thorough
@pytest.mark.slow
def test_contrast_speed_measures_memory_of_a_process_of_its_own(script: ModuleType) -> None:
    n = 3000
    extra = script.memory_in_process("ours, symmetric", n)
    assert 4 * n * script.DIM / 1e6 < extra < 4 * n * n / 1e6


@pytest.mark.thorough
@pytest.mark.slow
def test_contrast_speed_says_what_to_install() -> None:
    code = "import sys; sys.modules['info_nce'] = None; import contrast_speed as script; "
    finished = subprocess.run(
        [sys.executable, "-c", code + "script.info_nce_pytorch()"],
        cwd=EXPERIMENTS / "benchmarks",
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert "Run: pip install info-nce-pytorch" in finished.stderr
