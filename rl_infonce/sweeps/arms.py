"""Named arms of a comparison: what a training does differently from `rl-infonce train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Settings = Mapping[str, Any]

ARMS: Mapping[str, Settings] = {
    # This is the same network without the loss, to the last bit.
    "baseline": {"infonce_coef": 0.0},
    "infonce": {},
    # The loss and its cost stay, but positives belong to other anchors: time tells nothing.
    "placebo": {"positives": "shuffled"},
    # It augments as "atc" and "curl" do, without their loss (RAD, Laskin, Lee et al. 2020).
    "augment_only": {"infonce_coef": 0.0, "augment_observations": True},
    # RL spends about what a loss of drawn pairs costs, in whole passes (PPO) and updates (DQN).
    "extra_updates": {
        "infonce_coef": 0.0,
        "hyperparameters": {"ppo": {"n_epochs": 5}, "dqn": {"gradient_steps": 2}},
    },
    # The loss has updates of its own: no step of RL has its gradient in it.
    "decoupled": {"decoupled": True},
    # Nobody trained the features: the heads alone learn.
    "frozen_random": {"infonce_coef": 0.0, "freeze_encoder": True},
    "spatial_cpc": {"preset": "spatial_cpc"},
    "positional_cpc": {"preset": "positional_cpc"},
    "atc": {"preset": "atc"},
    "curl": {"preset": "curl"},
}


def merged(common: Settings, arm: Settings, algorithm: str) -> dict[str, Any]:
    """Return the settings of a cell: those of its arm before those common to all.

    "hyperparameters" maps names to values, or an algorithm to such a table.
    """
    hyperparameters = hyperparameters_for(common, algorithm) | hyperparameters_for(arm, algorithm)
    settings = {**common, **arm}
    settings.pop("hyperparameters", None)
    return settings | ({"hyperparameters": hyperparameters} if hyperparameters else {})


def control_problems(
    common: Settings, arm: str, algorithm: str, *, has_envs: bool = False
) -> Iterator[str]:
    """Yield why settings common to all, or the environments, keep an arm from being a control."""
    if arm == "frozen_random" and common.get("pretrained") is not None:
        yield (
            "Expected no `pretrained` common to all arms with 'frozen_random', whose features "
            f"nothing trained, got {common['pretrained']!r}. Give it to single arms, or name an "
            "arm of your own with freeze_encoder = true."
        )
    if arm == "extra_updates" and (has_envs or not hyperparameters_for(ARMS[arm], algorithm)):
        where = "environments that are no Atari games" if has_envs else algorithm
        yield (
            "Expected 'extra_updates' with ppo and dqn on Atari games, whose usual updates it "
            f"raises, got it with {where}. Name an arm of your own with infonce_coef = 0 and more."
        )
    elif arm == "extra_updates":
        usual = hyperparameters_for(common, algorithm)
        for name, value in hyperparameters_for(ARMS[arm], algorithm).items():
            if isinstance(usual.get(name), int) and usual[name] >= value:
                yield (
                    f"Expected `{name}` common to all arms below the {value} of 'extra_updates', "
                    f"got {usual[name]!r}, with which it would not update more. Name an arm of "
                    "your own with infonce_coef = 0 and more."
                )


def hyperparameters_for(settings: Settings, algorithm: str) -> dict[str, Any]:
    """Return the hyperparameters that one algorithm takes from settings."""
    given = settings.get("hyperparameters", {})
    own = given.get(algorithm, {})
    return {n: v for n, v in given.items() if not isinstance(v, Mapping)} | dict(own)
