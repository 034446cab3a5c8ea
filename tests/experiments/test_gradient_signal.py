"""The gradients of both losses are split into mean and noise."""

from __future__ import annotations

import pytest
import torch

from tests.experiments.loading import load


def test_norms_of_mean_and_noise_are_told_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.full((400,), 0.1)  # of norm 2
    gradients = [mean + 0.5 * torch.randn(400, generator=generator) for _ in range(400)]
    found = load("gradient_signal.py").norms(gradients)
    assert found["mean"] == pytest.approx(2.0, rel=0.02)
    assert found["minibatch"] == pytest.approx((4 + 0.25 * 400) ** 0.5, rel=0.02)


def test_norm_of_pure_noise_is_not_negative() -> None:
    found = load("gradient_signal.py").norms([torch.tensor([1.0]), torch.tensor([-1.0])])
    assert found == {"minibatch": 1.0, "mean": 0.0}


def test_measuring_leaves_the_agent_alone() -> None:
    script = load("gradient_signal.py")
    model = script.make_model(script.make_env("breakout", 0), script.CANDIDATES["coef_01"], 0)
    model.learn(1024)
    before = [p.detach().clone() for p in model.policy.parameters()]
    found = script.measure(model, 8, 1)
    assert 0 < found["infonce"]["mean"] < found["infonce"]["minibatch"]
    assert found["rl"]["minibatch"] > 0
    assert all(map(torch.equal, model.policy.parameters(), before))
    assert model.policy.features_extractor.infonce_coef == 0.1
    assert model.num_timesteps == 1024


def test_table_takes_ratios_within_a_seed() -> None:
    def row(seed: int, rl: float, loss: float) -> dict[str, object]:
        norms = {"minibatch": 1.0, "mean": rl}, {"minibatch": 0.5, "mean": loss}
        about = {"arm": "coef_01", "seed": seed, "step": 20_000}
        return {**about, "rl": norms[0], "infonce": norms[1]}

    shown = load("gradient_signal.py").table([row(0, 0.1, 0.2), row(1, 0.2, 0.2), row(2, 0.1, 0.3)])
    assert "| coef_01 | 20,000 | 1.000 | 0.500 | 0.50 | 0.100 | 0.200 | 2.00 |" in shown
