"""The algorithms of `rl-infonce train`, under RL Zoo's names, and what each can learn."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space

from rl_infonce.checks import check_choice
from rl_infonce.hyperparameters import is_schedule, schedule_start
from rl_infonce.sb3.combined import InfoNCECombinedExtractor
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.training.hyperparameter_kinds import checked_value
from rl_infonce.training.rl_zoo import ALGORITHMS

_BOX, _DISCRETE, _COUNTED = {"Box"}, {"Discrete"}, {"Discrete", "MultiDiscrete", "MultiBinary"}
_ACTIONS: dict[str, set[str]] = {
    **dict.fromkeys(("ppo", "a2c", "trpo", "ppo_lstm"), _BOX | _COUNTED),
    "ppo_mask": _COUNTED,
    **dict.fromkeys(("dqn", "qrdqn"), _DISCRETE),
    **dict.fromkeys(("sac", "td3", "tqc", "crossq"), _BOX),
}
# What SB3 builds on NatureCNN; it chooses by the extractor's class, and ours is another one.
_OF_IMAGES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("ppo", "a2c", "trpo", "ppo_mask", "ppo_lstm", "dqn", "qrdqn"), ()),
    "td3": (256, 256),
    **dict.fromkeys(("sac", "tqc", "crossq")),
}
_OURS = {"policy", "env", "policy_kwargs", "seed", "device", "verbose", "tensorboard_log"}
_OBJECTS = {  # no command line holds one
    *("action_noise", "_init_setup_model", "replay_buffer_class", "replay_buffer_kwargs"),
    *("rollout_buffer_class", "rollout_buffer_kwargs"),
}
_SCHEDULED = {"learning_rate", "clip_range", "clip_range_vf"}


class Network(NamedTuple):
    """The policy that fits observations, by SB3's name, with its extractor and hidden layers.

    `net_arch` is None where SB3 takes the layers of its own default.
    """

    policy: str
    extractor: type[InfoNCEExtractor | InfoNCECombinedExtractor]
    net_arch: tuple[int, ...] | None


def algorithm_class(name: str) -> type[BaseAlgorithm]:
    """Return the class of an algorithm; ValueError if its package is not installed."""
    check_choice("algo", name, ALGORITHMS)
    package, class_name = ALGORITHMS[name]
    try:
        found: type[BaseAlgorithm] = getattr(importlib.import_module(package), class_name)
    except ImportError as error:
        raise ValueError(
            f"Expected sb3-contrib for --algo {name}, got: {error}. "
            'Install it with `pip install "rl-infonce[contrib]"`.'
        ) from error
    return found


def check_actions(algorithm: str, space: spaces.Space[Any], where: str) -> None:
    """Raise unless an algorithm learns actions of a space; the message says which ones do."""
    kind = type(space).__name__
    if kind not in _ACTIONS[algorithm]:
        others = {name: kinds for name, kinds in _ACTIONS.items() if name != "ppo_mask"}
        fitting = [name for name, kinds in others.items() if kind in kinds]  # few have masks
        raise ValueError(
            f"Expected `--algo` to learn the actions of {where}, {space}, got {algorithm}. "
            + (f"These do: {', '.join(fitting)}." if fitting else "None of SB3's does.")
        )


def network_for(algorithm: str, space: spaces.Space[Any], where: str) -> Network:
    """Return the network for what is observed: images, vectors, or a dictionary of them."""
    if isinstance(space, spaces.Dict):
        policy = _named(algorithm, "MultiInput")
        if "MultiInput" not in policy:
            raise ValueError(
                f"Expected `--algo` with a policy for dictionaries, which {where} observes, got "
                f"{algorithm}, which has none. sac and tqc have one."
            )
        return Network(policy, InfoNCECombinedExtractor, None)
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"Expected observations of {where} to be numbers (Box or a Dict of Boxes), got "
            f"{space}. Wrap the environment, e.g. in gymnasium.wrappers.FlattenObservation."
        )
    if is_image_space(space):
        return Network(_named(algorithm, "Cnn"), InfoNCEExtractor, _OF_IMAGES[algorithm])
    return Network(_named(algorithm, "Mlp"), InfoNCEExtractor, None)


def _named(algorithm: str, kind: str) -> str:
    """Return the name of a policy; CrossQ's only one takes the extractor that it is given."""
    known = algorithm_class(algorithm).policy_aliases
    endings = ("LstmPolicy", "Policy")
    return next((f"{kind}{end}" for end in endings if f"{kind}{end}" in known), "MlpPolicy")


def checked_hyperparameters(algorithm: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters as an algorithm takes them; raise if it lacks one or a value is bad.

    SB3 itself checks what depends on several of them.
    """
    every = defaults_of(algorithm)
    legal = sorted(every.keys() - _OURS - _OBJECTS)
    checked = {}
    for name, value in given.items():
        check_choice("hyperparameter", name, legal)
        if is_schedule(value) and name not in _SCHEDULED:
            raise ValueError(f"Expected a schedule of {sorted(_SCHEDULED)} only, got {name!r}.")
        if name in _SCHEDULED and isinstance(value, str):
            checked_value(name, schedule_start(name, value), every[name])
            checked[name] = value
        else:
            checked[name] = checked_value(name, value, every[name])
    return checked


def defaults_of(algorithm: str) -> dict[str, Any]:
    """Return the arguments of an algorithm with SB3's defaults."""
    parameters = inspect.signature(algorithm_class(algorithm)).parameters
    return {name: each.default for name, each in parameters.items()}
