"""The comparison of pretraining speeds runs, and its plain arm computes the same loss."""

import pytest
import torch

from rl_infonce.pretraining import OBJECTIVES, FrameBatch, make_objective
from tests.experiments.loading import load

script = load("benchmarks/pretrain_speed.py")


@pytest.mark.slow
@pytest.mark.thorough
def test_every_objective_is_timed() -> None:
    summary = script.compare(1, 1, batch_size=2)
    assert set(summary["frames_per_second"]) == {
        *OBJECTIVES,
        "plain stdim",
        "stdim, fp32",
        "stdim, loss alone",
    }
    ratio = (
        summary["frames_per_second"]["vae"]["median"]
        / summary["frames_per_second"]["plain stdim"]["median"]
    )
    assert f"| {ratio:.1f} |" in script.table(summary)


def test_the_plain_arm_has_our_loss() -> None:
    objective = make_objective("stdim", script.fresh_encoder(), torch.Generator().manual_seed(0))
    features, maps = torch.randn(3, 2, 256), torch.randn(3, 2, 128, 2, 3)
    ours = objective.loss((features, maps), FrameBatch(torch.empty(0))).loss
    plain = script.stdim_loss(
        features[:, 1], maps[:, 1], maps[:, 0], objective.from_features, objective.from_map
    )
    assert float(plain.detach()) == pytest.approx(float(ours.detach()), rel=1e-5)
