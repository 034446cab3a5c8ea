"""What `rl_zoo3.train` reads of a module: the arguments of environment and model, by game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_infonce.sb3 import InfoNCEExtractor


def atari_with_infonce(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return RL Zoo's configuration of every Atari game, with an `InfoNCEExtractor`.

    Args:
        settings: Those of the algorithm, by RL Zoo's names.
    """
    return {
        "atari": {
            "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"],
            "frame_stack": 4,
            "policy": "CnnPolicy",
            "n_timesteps": 1e7,
            **settings,
            "policy_kwargs": {
                "features_extractor_class": InfoNCEExtractor,
                "net_arch": [],  # as SB3 does for NatureCNN, so that coefficient 0 is its baseline
            },
        }
    }
