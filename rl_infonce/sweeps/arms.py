"""Named arms of a comparison: what a training does differently from `rl-infonce train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ARMS", "Settings", "hyperparameters_for", "merged"]

Settings = Mapping[str, Any]

ARMS: Mapping[str, Settings] = {
    # The same network without the loss, to the last bit.
    "baseline": {"infonce_coef": 0.0},
    "infonce": {},
    # The same loss and cost, but positives of other anchors: what time tells is gone.
    "placebo": {"positives": "shuffled"},
    # What the augmentation of "atc" and "curl" does without their loss (RAD, Laskin et al. 2020).
    "augment_only": {"infonce_coef": 0.0, "augment_observations": True},
    # RL spends about what the loss costs: 5 instead of 4 passes of PPO, 2 updates of DQN.
    "extra_updates": {
        "infonce_coef": 0.0,
        "hyperparameters": {"ppo": {"n_epochs": 5}, "dqn": {"gradient_steps": 2}},
    },
    # Features nobody trained: what is left to the heads.
    "frozen_random": {"infonce_coef": 0.0, "freeze_encoder": True},
    "stdim": {"preset": "stdim"},
    "positional_dim": {"preset": "positional_dim"},
    "atc": {"preset": "atc"},
    "curl": {"preset": "curl"},
}


def merged(common: Settings, arm: Settings, algorithm: str) -> dict[str, Any]:
    """Return the settings of a cell: those of its arm before those common to all.

    Args:
        common: Settings of `rl-infonce train`; "hyperparameters" maps names to values, or an
            algorithm to such a table.
        arm: Likewise.
        algorithm: Whose hyperparameters are wanted.
    """
    hyperparameters = {
        **hyperparameters_for(common, algorithm),
        **hyperparameters_for(arm, algorithm),
    }
    settings = {**common, **arm}
    settings.pop("hyperparameters", None)
    return settings | ({"hyperparameters": hyperparameters} if hyperparameters else {})


def hyperparameters_for(settings: Settings, algorithm: str) -> dict[str, Any]:
    """Return the hyperparameters that one algorithm takes from settings."""
    given = settings.get("hyperparameters", {})
    own = given.get(algorithm, {})
    return {n: v for n, v in given.items() if not isinstance(v, Mapping)} | dict(own)
