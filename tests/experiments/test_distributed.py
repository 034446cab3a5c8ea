"""The comparison of ranks with one process runs, and sees a difference."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.experiments.loading import load

script = load("distributed.py")


@pytest.mark.slow
@pytest.mark.thorough
def test_ranks_are_compared_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "N_RANKS", (2,))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    run_ranks = script.run_ranks

    def run_one_here(n_ranks: int, folder: Path, *flags: str) -> None:
        if n_ranks > 1:
            run_ranks(n_ranks, folder, *flags)
            return
        folder.mkdir()
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setattr(sys, "argv", ["distributed_rank.py", str(folder), *flags])
        load("distributed_rank.py").main()

    monkeypatch.setattr(script, "run_ranks", run_one_here)
    found = script.compare(tmp_path, ["infonce"], "--encoder", "nature", "--n-steps", "2")
    differences = found["differences"]["infonce"]
    assert set(differences) == {
        "fp32, 2 ranks",
        "bf16, 2 ranks",
        "fp32, in parts",
        "bf16 for fp32",
    }
    assert max(differences["fp32, 2 ranks"].values()) < 1e-5
    assert max(differences["fp32, in parts"].values()) < 1e-5
    assert differences["bf16 for fp32"]["loss"] > 1e-5
    seconds = found["seconds_per_step"]["infonce"]
    assert set(seconds) == {"1", "2 ranks"}
    own, alone = (differences[arm]["loss"] for arm in ("fp32, 2 ranks", "fp32, in parts"))
    assert f"| infonce | {own:.0e} ({alone:.0e}) |" in script.table(found, "fp32")
    assert f" ({differences['bf16 for fp32']['weight']:.0e}) |" in script.table(found, "bf16")
    last = f"| infonce | {seconds['1']:.2f} | {seconds['2 ranks']:.2f} |"
    assert script.speed_table(found).endswith(last)


def seen(change: float = 0.0) -> dict[str, Any]:
    """What a rank keeps, with each kind of number changed by as much."""
    gradient = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([100.0 * (1 + change)])}
    return {
        "train_losses": [1.0, 2.0],
        "validation_losses": [4.0 * (1 + change), 5.0],
        "gradients": [gradient, {"a": torch.tensor([3.0, 4.0 + 5 * change])}],
        "weights": {"w": torch.tensor([0.0, change])},
    }


def test_every_kind_of_difference_is_seen() -> None:
    assert set(script.differences(seen(), seen()).values()) == {0.0}
    found = script.differences(seen(), seen(0.25))
    assert found == dict.fromkeys(script.QUANTITIES, pytest.approx(0.25))
    other = seen()
    del other["train_losses"][1]
    with pytest.raises(ValueError, match="zip"):
        script.differences(seen(), other)


def test_a_gradient_that_is_zero_but_for_rounding_is_measured_by_the_whole() -> None:
    one = {"a": torch.tensor([10.0]), "b": torch.tensor([1e-9])}
    other = {"a": torch.tensor([10.0]), "b": torch.tensor([1e-6])}
    assert script.gradient_difference(one, other) == pytest.approx(1e-5, rel=1e-2)
