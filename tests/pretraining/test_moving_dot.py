"""Who finds the dot? Time tells it from noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_infonce.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import (
    Budget,
    PretrainingSettings,
    make_objective,
    pretrain,
    training_and_validation,
)
from rl_infonce.probing import extract_features, make_task, probe_features
from tests.pretraining.moving_dot import moving_dot


@pytest.mark.parametrize(
    ("name", "least", "most"), [("stdim", 0.95, 1.0), ("static_dim", 0.0, 0.6), (None, 0.0, 0.6)]
)
def test_stdim_finds_the_dot_and_static_dim_does_not(
    name: str | None, least: float, most: float
) -> None:
    game = moving_dot(60, 50, np.random.default_rng(0))
    generator = torch.Generator().manual_seed(0)
    encoder = PixelEncoder((1, 84, 84), 256, generator=generator)
    if name is not None:
        objective = make_objective(name, encoder, generator)
        settings = PretrainingSettings(learning_rate=1e-3, n_validation_frames=256, patience=40)
        both = training_and_validation(
            game.observations, game.episode_ids, np.random.default_rng(0)
        )
        pretrain(objective, *both, Budget(n_steps=500), settings)
    probed = moving_dot(40, 50, np.random.default_rng(1))
    task = make_task(probed, np.random.default_rng(0))
    scores, _ = probe_features(extract_features(encoder, probed.observations), task)
    assert least <= scores.mean.f1_weighted <= most
