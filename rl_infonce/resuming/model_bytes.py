"""A model in SB3's zip format, which also holds the statistics of its `VecNormalize`.

SB3 saves these statistics as a pickle beside the model, which may be forgotten, replaced, or
malicious. Here they are numbers in the model's own file, and say to which weights they belong.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from rl_infonce.files.digests import sha256_of

STATISTICS, WEIGHTS = "normalization.json", "policy.pth"
"""Members of the zip file."""
_SETTINGS = ("norm_obs", "norm_obs_keys", "clip_obs", "epsilon", "gamma")


def model_bytes(model: BaseAlgorithm) -> bytes:
    """Return what `model.save` writes, and beside it the statistics of a `VecNormalize`."""
    file = io.BytesIO()
    model.save(file)
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        with zipfile.ZipFile(file, "a") as archive:
            statistics = _statistics(normalizer, archive.read(WEIGHTS))
            archive.writestr(STATISTICS, json.dumps(statistics))
    return file.getvalue()


def digest_of(statistics: Mapping[str, Any]) -> str:
    """Return the digest of statistics, whatever they say it is."""
    told = {name: each for name, each in statistics.items() if name != "sha256"}
    return sha256_of(json.dumps(told, sort_keys=True).encode())


def _statistics(normalizer: VecNormalize, weights: bytes) -> dict[str, Any]:
    observed = normalizer.obs_rms if normalizer.norm_obs else {}
    by_key = observed if isinstance(observed, dict) else {"": observed}
    statistics = {
        "settings": {name: getattr(normalizer, name) for name in _SETTINGS},
        "observations": {key: _moments(each) for key, each in by_key.items()},
        "returns": _moments(normalizer.ret_rms),
        "weights_sha256": sha256_of(weights),
    }
    return {**statistics, "sha256": digest_of(statistics)}


def _moments(statistics: Any) -> dict[str, Any]:
    return {
        name: np.asarray(getattr(statistics, name), np.float64).tolist()
        for name in ("mean", "var", "count")
    }
