"""Self-supervised encoders from collected frames: the objectives of the ST-DIM table and ours."""

from rl_infonce.pretraining.base_objective import FrameBatch, PretrainingLoss, PretrainingObjective
from rl_infonce.pretraining.budget import Budget, parse_budget
from rl_infonce.pretraining.checkpoint import Progress
from rl_infonce.pretraining.episode_frames import (
    EpisodeFrames,
    hold_out_episodes,
    training_and_validation,
)
from rl_infonce.pretraining.objectives import OBJECTIVES, make_objective
from rl_infonce.pretraining.trainer import PretrainingSettings, pretrain

__all__ = [
    "OBJECTIVES",
    "Budget",
    "EpisodeFrames",
    "FrameBatch",
    "PretrainingLoss",
    "PretrainingObjective",
    "PretrainingSettings",
    "Progress",
    "hold_out_episodes",
    "make_objective",
    "parse_budget",
    "pretrain",
    "training_and_validation",
]
