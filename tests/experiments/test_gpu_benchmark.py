"""The benchmark of a GPU runs, small and on the CPU."""

import json
from pathlib import Path

import gpu
import pytest


@pytest.mark.thorough
@pytest.mark.atari
@pytest.mark.slow
def test_a_small_turn_of_every_section_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "gpu.json"
    arguments = ["gpu.py", "--smoke", "--device", "cpu", "--output", str(output)]
    monkeypatch.setattr("sys.argv", arguments)
    gpu.main()
    found = json.loads(output.read_text())
    assert found["machine"]["device"]
    speeds = [found[name] for name in ("PPO", "DQN", "pretraining", "probes")]
    assert all(turn > 0 for arms in speeds for turns in arms.values() for turn in turns)
    assert any("minibatch" in arm for arm in found["PPO"])
    assert {"ours", "three products"} <= {*found["contrast"]["64"]["ms"]}
    assert "| 128 | ours |" in capsys.readouterr().out


def test_ratios_are_those_of_a_turn_with_the_same_arithmetic() -> None:
    runs = {
        "stock": [1.0, 1.0],
        "off": [10.0, 100.0],
        "minibatch": [9.0, 90.0],
        "off bf16": [20.0, 20.0],
        "minibatch bf16": [10.0, 10.0],
    }
    times = {"three products": [2.0], "ours": [3.0]}
    contrast = {"8": {"ms": times, "peak_mb": {"ours": 5.0, "big": None}}}
    table = gpu.tables({"PPO": runs, "contrast": contrast})
    assert "| minibatch | 49.5 | 9 to 90 | 0.90 |" in table
    assert "| minibatch bf16 | 10 | 10 to 10 | 0.50 |" in table
    assert "| stock | 1 | 1 to 1 | - |" in table
    assert "| 8 | ours | 3 | 1.50 | 5 |" in table
    assert "| 8 | big | - | - | does not fit |" in table
