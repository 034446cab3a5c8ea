"""Who finds the dot? Time tells it from noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rl_infonce.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import (
    Budget,
    EpisodeFrames,
    PretrainingSettings,
    hold_out_episodes,
    make_objective,
    pretrain,
)
from rl_infonce.probing import extract_features, make_task, probe_features
from tests.pretraining.moving_dot import moving_dot


@pytest.mark.parametrize(
    ("name", "least", "most"), [("stdim", 0.95, 1.0), ("static_dim", 0.0, 0.6)]
)
def test_stdim_finds_the_dot_and_static_dim_does_not(name: str, least: float, most: float) -> None:
    game = moving_dot(60, 50, np.random.default_rng(0))
    train, held_out = hold_out_episodes(game.episode_ids, np.random.default_rng(0))
    frames = EpisodeFrames(game.observations, game.episode_ids, train)
    generator = torch.Generator().manual_seed(0)
    encoder = PixelEncoder((1, 84, 84), 256, generator=generator)
    objective = make_objective(name, encoder, generator)
    settings = PretrainingSettings(learning_rate=1e-3, n_validation_samples=128, patience=40)
    pretrain(objective, frames, replace(frames, rows=held_out), Budget(n_steps=500), settings)
    probed = moving_dot(40, 50, np.random.default_rng(1))
    task = make_task(probed, np.random.default_rng(0))
    scores, _ = probe_features(extract_features(encoder, probed.observations), task)
    assert least <= scores.mean.f1_weighted <= most
