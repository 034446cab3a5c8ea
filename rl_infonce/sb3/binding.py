"""How an extractor finds the algorithm that trains it, without holding on to it."""

from __future__ import annotations

import sys
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BaseModel
from torch import nn

__all__ = [
    "constructing_algorithm",
    "is_gradient_free",
    "is_of_target_network",
    "known_action_space",
    "place_of",
    "training_algorithm",
    "unfit_for_attaching",
]

_COMPILED = "_orig_mod."  # torch.compile puts it before names
_MAX_FRAMES = 24


def _caller(kind: type[Any], method: str) -> Any | None:
    """Return the `self` of the nearest caller that is a `kind` running `method`, or None."""
    frame = sys._getframe(2)
    for _ in range(_MAX_FRAMES):
        if frame.f_code.co_name == method and isinstance(frame.f_locals.get("self"), kind):
            return frame.f_locals["self"]
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def constructing_algorithm() -> BaseAlgorithm | None:
    """Return the algorithm that is building its policy among the callers, or None.

    SB3 gives an extractor its observation space and nothing else, but builds it inside the
    algorithm's `_setup_model`; this reads that frame's `self`. Read-only, CPython only; on another
    interpreter, or under `BasePolicy.load`, it finds nothing and the caller stays unbound.
    """
    found: BaseAlgorithm | None = _caller(BaseAlgorithm, "_setup_model")
    return found


def training_algorithm() -> BaseAlgorithm | None:
    """Return the algorithm whose `train` is among the callers, or None."""
    found: BaseAlgorithm | None = _caller(BaseAlgorithm, "train")
    return found


def known_action_space(
    given: spaces.Space[Any] | None, *, look_up: bool = True
) -> spaces.Space[Any]:
    """Return the given action space, or that of the policy that is building an extractor.

    Args:
        given: None looks for the policy among the callers.
        look_up: Whether it may.

    Raises:
        TypeError: If the given one is no space.
        ValueError: If there is neither.
    """
    if given is not None:
        if not isinstance(given, spaces.Space):
            raise TypeError(f"Expected `action_space` to be a gymnasium space, got {given!r}.")
        return given
    policy: BaseModel | None = _caller(BaseModel, "make_features_extractor") if look_up else None
    if policy is None:
        raise ValueError(
            "Expected `action_space` with action_conditioning=True where no SB3 policy builds the "
            "extractor, or auto_bind=False, got None."
        )
    return policy.action_space


def place_of(extractor: nn.Module, policy: nn.Module) -> str:
    """Return which of several trained extractors this is; "" if it is the only one.

    Named after the network, "actor" or "vf", and after the image where observations hold several,
    "camera" or "actor.camera".

    Args:
        extractor: Of InfoNCE.
        policy: That it is part of; its target networks do not count.
    """
    places = {
        id(module): name.removeprefix(_COMPILED)
        for name, module in policy.named_modules()
        if type(module) is type(extractor) and not is_of_target_network(name)
    }
    if len(places) < 2 or id(extractor) not in places:
        return ""
    networks = {name.split(".")[0] for name in places.values()}
    parts = [
        part.removesuffix("features_extractor").strip("_")
        for part in places[id(extractor)].split(".")
        if part != "extractors"  # of InfoNCECombinedExtractor
    ]
    if len(networks) > 1 and not parts[0]:
        parts[0] = "pi"  # an actor-critic policy has the policy's extractor under two names
    return ".".join(part for part in parts if part)


def is_of_target_network(name: str) -> bool:
    """Return whether the name of a policy's module is that of a part of a target network."""
    network = name.removeprefix(_COMPILED).split(".")[0]
    return network.endswith("_target")


def _class_names(algorithm: BaseAlgorithm) -> set[str]:
    return {base.__name__ for base in type(algorithm).__mro__}


def is_gradient_free(algorithm: BaseAlgorithm) -> bool:
    """Return whether the algorithm perturbs parameters instead of following a gradient (ARS)."""
    return "ARS" in _class_names(algorithm)


def unfit_for_attaching(algorithm: BaseAlgorithm) -> str | None:
    """Return why a loss cannot ride on this algorithm's backward, or None if it can.

    Judged by class name, so that sb3-contrib need not be installed.
    """
    if is_gradient_free(algorithm):
        return "ARS follows no gradient, so there is no backward to carry the InfoNCE loss"
    if "TRPO" in _class_names(algorithm):
        return (
            "TRPO differentiates its KL term and its surrogate one by one, so an attached loss "
            "would enter the Fisher matrix and be maximised with the surrogate; "
            "use InfoNCECallback(decoupled=True) to train the encoder in updates of its own"
        )
    return None
