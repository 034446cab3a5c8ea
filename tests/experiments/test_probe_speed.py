"""The speed comparison of probes runs, on little data."""

from types import ModuleType
from typing import Any

import pytest
import torch

from tests.experiments.loading import load


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark with three small variables."""
    probe_speed = load("benchmarks/probe_speed.py")
    monkeypatch.setattr(probe_speed, "N_CLASSES", (2, 3, 5))
    monkeypatch.setattr(probe_speed, "EPISODE_LENGTH", 40)
    return probe_speed


@pytest.mark.slow
@pytest.mark.thorough
def test_every_arm_reports_the_same_variables(script: ModuleType) -> None:
    data = script.synthetic(800, 16)
    summary = script.compare(data, rounds=2, peers=("adam, told", "adam"))
    for run in summary["runs"]:
        assert set(run) == {"ours", "adam, told", "adam"}
        for outcome in run.values():
            assert set(outcome["losses"]) == set(data.labels)
    assert summary["arms"]["ours"]["reached"] == 3
    assert "| ours | " in script.table(summary)


def test_a_run_stops_where_told_and_begins_alike_whatever_was_drawn_before(
    script: ModuleType,
) -> None:
    data = script.synthetic(800, 16)
    inputs = script.standardised(data)
    labels = torch.as_tensor(data.labels["variable_1"]).long()
    easy = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        easy.append(script.adam_run(inputs, labels, data.split, 1e-3, 2.0))
    best = script.adam_run(inputs, labels, data.split, 1e-3, -1.0)
    assert best < easy[0] == easy[1] < 2.0


def test_summary_takes_ratios_within_a_round(script: ModuleType) -> None:
    def outcome(seconds: float, loss: float) -> Any:
        return script.Outcome({"x": seconds}, {"x": loss}, {"x": 1.0})

    runs = [
        {"ours": outcome(1, 0.5), "adam, told": outcome(3, 0.6)},
        {"ours": outcome(2, 0.5), "adam, told": outcome(2, 0.6)},
        {"ours": outcome(4, 0.5), "adam, told": outcome(8, 0.6)},
    ]
    found = script.summary("adam, told", runs)
    assert (found["seconds"], found["times_ours"]) == (3, 2)
    assert (found["lowest"], found["highest"], found["reached"]) == (1, 3, 0)


def test_limits_count_both_products_of_every_pass(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "matmul_speed", lambda: 1.0)
    data = script.synthetic(800, 16)
    found = script.limits(data)
    # scores and gradients of 10 classes on 17 inputs, for at least 20 passes
    assert found["gflop"] > 20 * 2 * 2 * len(data.split.train) * 10 * 17 / 1e9
