"""Give a `VecNormalize` the statistics with which a saved agent was trained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from rl_infonce.agents.model_zip import read_beside_weights
from rl_infonce.files.digests import sha256_of
from rl_infonce.resuming.model_bytes import STATISTICS, digest_of


def load_statistics(path: str | os.PathLike[str], normalizer: VecNormalize) -> None:
    """Set the statistics in the file of a model, as `rl-infonce train --normalize` writes it.

    Rewards stay as they are from now on, and statistics move no more. No pickle is read.

    Args:
        path: File of a model.
        normalizer: Around environments that observe what the agent observed.

    Raises:
        ValueError: If the file has no statistics, or they, or the weights beside them, were changed
            since they were saved, or do not fit the environment.
        OSError: If the file cannot be read.
    """
    path = Path(path)
    read = read_beside_weights(path, STATISTICS)
    if read is None:
        raise ValueError(f"Expected {path} with the statistics of VecNormalize, got none in it.")
    try:
        statistics, weights = read
        _check_unchanged(statistics, weights)
        found = {key: _moments(each) for key, each in statistics["observations"].items()}
        own = _of(normalizer)
        shapes = [{key: each.mean.shape for key, each in one.items()} for one in (found, own)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{shapes[0]} instead of {shapes[1]}")
        settings, returns = statistics["settings"], _moments(statistics["returns"])
        numbers = {name: float(settings[name]) for name in ("clip_obs", "epsilon", "gamma")}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"Expected statistics in {path} that were saved with its weights and fit the "
            f"environment, got: {error}. Take the file as it was saved."
        ) from error
    for key, each in own.items():
        each.mean, each.var, each.count = found[key].mean, found[key].var, found[key].count
    normalizer.ret_rms = returns
    for name, number in numbers.items():
        setattr(normalizer, name, number)
    normalizer.training = normalizer.norm_reward = False


def _check_unchanged(statistics: Mapping[str, Any], weights: bytes) -> None:
    if statistics["weights_sha256"] != sha256_of(weights):
        raise ValueError("statistics of other weights")
    if statistics["sha256"] != digest_of(statistics):
        raise ValueError("statistics that were changed since")


def _of(normalizer: VecNormalize) -> dict[str, RunningMeanStd]:
    """Return the running statistics of observations by key, "" for all of them."""
    if not normalizer.norm_obs:
        return {}
    found = normalizer.obs_rms
    return dict(found) if isinstance(found, dict) else {"": found}


def _moments(told: Mapping[str, Any]) -> RunningMeanStd:
    moments = RunningMeanStd()
    moments.mean, moments.var = (np.asarray(told[name], np.float64) for name in ("mean", "var"))
    moments.count = float(told["count"])
    return moments
