"""The loss may see features before their ReLU, which the policy sees after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.sb3.worlds import ALGORITHMS, extractors_of, policy_kwargs

DEAD = 3


def gradients_of_linear(**settings: Any) -> tuple[Tensor, Tensor]:
    """Return the loss's gradients on weight and bias of a layer, one unit of which is dead."""
    model = ALGORITHMS["PPO"](policy_kwargs(infonce_coef=1.0, **settings))
    (extractor,) = extractors_of(model)
    model.learn(96)
    layer: Any = extractor.linear[0]
    with torch.no_grad():
        layer.bias[DEAD] = -100.0
    experience = extractor.experience()
    assert experience is not None
    result = extractor.infonce_loss(experience)
    assert result is not None
    weight, bias = torch.autograd.grad(result.loss, [layer.weight, layer.bias])
    return weight, bias


@pytest.mark.parametrize("critic", ["cosine", "bilinear", "mlp"])
def test_before_the_relu_a_dead_feature_learns(critic: str) -> None:
    before, _ = gradients_of_linear(rectified=False, critic=critic)
    after, _ = gradients_of_linear(rectified=True, critic=critic)
    assert before[DEAD].norm() > 0
    assert after[DEAD].norm() == 0


@pytest.mark.parametrize("critic", ["cosine", "bilinear", "mlp"])
def test_before_the_relu_a_centred_loss_moves_no_mean(critic: str) -> None:
    weight, bias = gradients_of_linear(rectified=False, critic=critic)
    assert bias.abs().max() < 1e-5 * weight.abs().max()
    weight, bias = gradients_of_linear(rectified=True, critic=critic)
    assert bias.abs().max() > 1e-3 * weight.abs().max()


@pytest.mark.parametrize("rectified", [True, False])
def test_policy_and_diagnostics_see_features_after_the_relu(rectified: bool) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(rectified=rectified))
    (extractor,) = extractors_of(model)
    images = torch.rand(5, 4, 36, 36, generator=torch.Generator().manual_seed(0))
    assert extractor.eval()(images).min() == 0
    assert extractor.encode(images, rectified=False).features.min() < 0
    with torch.no_grad():
        bias: Any = extractor.linear[0].bias
        bias.fill_(-100.0)
    model.learn(96)
    assert extractor.last_infonce["dead_features"] == 1.0
