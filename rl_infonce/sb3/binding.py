"""How an extractor finds the algorithm that trains it, without holding on to it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BaseModel
from torch import nn

from rl_infonce.sb3.spaces import check_single_frame_skip

_COMPILED = "_orig_mod."  # torch.compile puts it before names
_ACTIONS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

_MAX_FRAMES = 64  # a policy under torch.compile has a dozen of torch's own
_HOOKS = (
    "init_callback",
    "on_training_start",
    "on_rollout_start",
    "on_step",
    "on_rollout_end",
    "on_training_end",
)
"""Methods of callbacks that algorithms call."""


def _callers(kind: type[Any] | tuple[type[Any], ...], *methods: str) -> Iterator[Any]:
    """Yield the `self` of each caller that is a `kind` running one of `methods`, nearest first."""
    return (each["self"] for each in _locals_of_callers(kind, *methods))


def _locals_of_callers(
    kind: type[Any] | tuple[type[Any], ...], *methods: str
) -> Iterator[Mapping[str, Any]]:
    frame = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame.f_code.co_name in methods and isinstance(frame.f_locals.get("self"), kind):
            yield frame.f_locals
        if frame.f_back is None:
            return
        frame = frame.f_back


def constructing_algorithm() -> BaseAlgorithm | None:
    """Return the algorithm that is building its policy among the callers, or None.

    SB3 gives an extractor its observation space and nothing else, but builds it inside the
    algorithm's `_setup_model`; this reads that frame's `self`. Read-only, CPython only; on another
    interpreter, or under `BasePolicy.load`, it finds nothing and the caller stays unbound.
    """
    return next(_callers(BaseAlgorithm, "_setup_model"), None)


def is_built_off_policy() -> bool:
    """Return whether an off-policy algorithm is building an extractor, or a policy as it has.

    A policy that is built alone is of an on-policy algorithm if it evaluates actions.
    """
    algorithm = constructing_algorithm()
    if algorithm is not None:
        return isinstance(algorithm, OffPolicyAlgorithm)
    policy = building_policy()
    return policy is not None and not hasattr(policy, "evaluate_actions")


def building_policy() -> BaseModel | None:
    """Return the policy that is building an extractor among the callers, or None."""
    return next(_callers(BaseModel, "make_features_extractor"), None)


def training_algorithm() -> BaseAlgorithm | None:
    """Return the algorithm whose `train` is among the callers, or None."""
    return next(_callers(BaseAlgorithm, "train"), None)


def current_samples(algorithm: BaseAlgorithm) -> list[Any]:
    """Return what `train` of this algorithm has sampled from its buffers, read-only.

    These are that caller's variables which hold the `RolloutBufferSamples` or `ReplayBufferSamples`
    of SB3, or the like of sb3-contrib.
    """
    for variables in _locals_of_callers(BaseAlgorithm, "train"):
        if variables["self"] is algorithm:
            return [each for each in variables.values() if _are_samples(each)]
    return []


def _are_samples(variable: Any) -> bool:
    fields = getattr(variable, "_fields", ())
    return isinstance(variable, tuple) and {"observations", "actions"} <= set(fields)


def check_host(model: BaseAlgorithm, horizons: tuple[int, ...]) -> None:
    """Raise unless a loss of these horizons can be bound to a model.

    Args:
        model: What was given to `bind`.
        horizons: Gaps in agent steps; none for a baseline, which needs no pairs.

    Raises:
        TypeError: If `model` is no algorithm of SB3.
        ValueError: If it follows no gradient, a horizon does not fit into its rollouts, or its
            emulator skips frames twice.
    """
    if not isinstance(model, BaseAlgorithm):
        raise TypeError(f"Expected `model` to be an SB3 algorithm, got {model!r}.")
    if "ARS" in _class_names(model):  # its perturbations would cover the loss's own weights
        raise ValueError(
            f"Expected `model` to follow a gradient, got {type(model).__name__}, which perturbs "
            "parameters instead: it has no backward that could carry the InfoNCE loss. Take "
            "another algorithm, or an extractor without the loss."
        )
    n_steps = getattr(model, "n_steps", None) if hasattr(model, "gae_lambda") else None
    if n_steps is not None and horizons and max(horizons) >= n_steps:
        raise ValueError(
            f"Expected `horizons` below n_steps={n_steps} of {type(model).__name__}, got "
            f"{horizons}: no rollout would hold a pair. Raise n_steps or lower horizons."
        )
    check_single_frame_skip(model)


def is_part_of(module: nn.Module, algorithm: BaseAlgorithm) -> bool:
    """Return whether a module is in an algorithm's policy, or may be while SB3 builds that."""
    policy = getattr(algorithm, "policy", None)
    return policy is None or any(each is module for each in policy.modules())


def is_updating(algorithm: BaseAlgorithm) -> bool:
    """Return whether `train` or `learn` of this algorithm is among the callers.

    A forward with gradients outside them is somebody's look at the policy, and so is one of a
    callback. `learn` counts too, for algorithms that update their policy in a method of another
    name.
    """
    for found in _callers((BaseAlgorithm, BaseCallback), "train", "learn", *_HOOKS):
        if found is algorithm or isinstance(found, BaseCallback):
            return found is algorithm
    return False


def is_learning(algorithm: BaseAlgorithm) -> bool:
    """Return whether this algorithm trains or learns, be it that a callback of it asks."""
    return any(found is algorithm for found in _callers(BaseAlgorithm, "train", "learn"))


def is_collecting(algorithm: BaseAlgorithm) -> bool:
    """Return whether `collect_rollouts` of this algorithm is among the callers."""
    return any(found is algorithm for found in _callers(BaseAlgorithm, "collect_rollouts"))


def has_lost_statistics(algorithm: BaseAlgorithm) -> bool:
    """Return whether an agent goes on under a `VecNormalize` that has counted this `learn` alone.

    To be asked at the first update of a `learn`, when `_n_updates` are those of earlier ones. One
    that has counted a few other steps meanwhile is not told from one that has counted the earlier.
    """
    normalizer = algorithm.get_vec_normalize_env()
    if normalizer is None or not algorithm._n_updates:
        return False
    if not (normalizer.norm_obs and normalizer.training):  # frozen ones are somebody's choice
        return False
    n_steps = algorithm.num_timesteps - algorithm._num_timesteps_at_start
    n_of_resets = 2 * normalizer.num_envs  # by the user, and by `learn`
    moments = normalizer.obs_rms
    counts = [each.count for each in (moments.values() if isinstance(moments, dict) else [moments])]
    return min(counts, default=math.inf) < n_steps + n_of_resets + 1


def known_action_space(
    given: spaces.Space[Any] | None, *, look_up: bool = True
) -> spaces.Space[Any]:
    """Return the given action space, or that of the policy that is building an extractor.

    Args:
        given: Space of the actions; None looks for the policy among the callers.
        look_up: Whether the callers may be looked at.

    Raises:
        TypeError: If `given` is no space, or one whose actions are no array of a fixed size.
        ValueError: If no space is given and no policy is found.
    """
    if given is not None:
        if not isinstance(given, _ACTIONS):
            raise TypeError(
                "Expected `action_space` to be a gymnasium Box, Discrete, MultiDiscrete or "
                f"MultiBinary, got {given!r}. Flatten the actions in the environment, or leave "
                "them out by action_conditioning=False."
            )
        return given
    policy = building_policy() if look_up else None
    if policy is None:
        raise ValueError(
            "Expected `action_space` with action_conditioning=True where no SB3 policy builds the "
            "extractor, or auto_bind=False, got None. Pass env.action_space, or leave actions out "
            "by action_conditioning=False."
        )
    return policy.action_space


def place_of(extractor: nn.Module, policy: nn.Module) -> str:
    """Return which of several trained extractors this is; "" if it is the only one.

    Named after the network, "actor" or "vf", and after the image where observations hold several,
    "camera" or "actor.camera". Isolated encoders of one observation are one for all networks.

    Args:
        extractor: An InfoNCEExtractor.
        policy: Policy that the extractor is part of; target networks do not count.
    """
    places = {
        id(module): name.removeprefix(_COMPILED)
        for name, module in policy.named_modules()
        if type(module) is type(extractor) and not is_of_target_network(name)
    }
    if len(places) < 2 or id(extractor) not in places:
        return ""
    if extractor.is_isolated:
        keys = {module.observation_key for module in policy.modules() if id(module) in places}
        return str(extractor.observation_key) if len(keys) > 1 else ""
    networks = {name.split(".")[0] for name in places.values()}
    return _short(places[id(extractor)], of_several=len(networks) > 1)


def _short(name: str, *, of_several: bool) -> str:
    """Return the network and the entry of observations in the name of an extractor's module."""
    parts = [
        part.removesuffix("features_extractor").strip("_")
        for part in name.split(".")
        if part != "extractors"  # of InfoNCECombinedExtractor
    ]
    if of_several and not parts[0]:
        parts[0] = "pi"  # an actor-critic policy has the policy's extractor under two names
    return ".".join(part for part in parts if part)


def is_of_target_network(name: str) -> bool:
    """Return whether the name of a policy's module is that of a part of a target network."""
    network = name.removeprefix(_COMPILED).split(".")[0]
    return network.endswith("_target")


def _class_names(algorithm: BaseAlgorithm) -> set[str]:
    return {base.__name__ for base in type(algorithm).__mro__}


def judges_its_actor(algorithm: BaseAlgorithm) -> bool:
    """Return whether this is SAC, TQC, CrossQ or a subclass: their critic serves two losses."""
    hosts = ("stable_baselines3", "sb3_contrib")
    return any(
        base.__name__ in ("SAC", "TQC", "CrossQ") and base.__module__.startswith(hosts)
        for base in type(algorithm).__mro__
    )


def unfit_for_attaching(algorithm: BaseAlgorithm) -> str | None:
    """Return why a loss cannot ride on this algorithm's backward, or None if it can.

    Judged by class name, so that sb3-contrib need not be installed.
    """
    if "TRPO" in _class_names(algorithm):
        return (
            "TRPO differentiates its KL term and its surrogate one by one, so an attached loss "
            "would enter the Fisher matrix and be maximised with the surrogate; "
            "isolated=True or InfoNCECallback(decoupled=True) trains the encoder in its own updates"
        )
    return None
