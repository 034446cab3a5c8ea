"""Every algorithm the plugin serves, on stamped images or vectors, as small as it trains."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib import QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.torch_layers import NatureCNN

from rl_infonce import InfoNCEExtractor
from rl_infonce.sb3.callbacks import trained_extractors
from tests.sb3.fakes import IMAGE_SHAPE, StampedEnv, StampedVectorEnv, stamped_vec_env

Build = Callable[..., BaseAlgorithm]


def policy_kwargs(extractor: type[NatureCNN] = InfoNCEExtractor, **settings: Any) -> dict[str, Any]:
    """Return policy_kwargs of a small network; `settings` go to the extractor."""
    if issubclass(extractor, InfoNCEExtractor):
        settings.setdefault("n_pairs", 16)
    return {
        "features_extractor_class": extractor,
        "features_extractor_kwargs": {"features_dim": 32, **settings},
        "net_arch": [],
    }


def _with_observation(kwargs: dict[str, Any], kind: type[StampedEnv]) -> dict[str, Any]:
    """Return policy_kwargs in which vectors stand beside their features if nothing is said."""
    own = kwargs.get("features_extractor_kwargs")
    if kwargs.get("features_extractor_class") is not InfoNCEExtractor or kind is StampedEnv:
        return kwargs
    return {**kwargs, "features_extractor_kwargs": {"with_observation": True, **(own or {})}}


def _on_policy(
    algorithm: Any, policy: str = "CnnPolicy", kind: type[StampedEnv] = StampedEnv, **fixed: Any
) -> Build:
    small = {"lstm_hidden_size": 16} if "Lstm" in policy else {}

    def build(
        kwargs: dict[str, Any] | None = None, *, continuous: bool = False, **changes: Any
    ) -> BaseAlgorithm:
        env = stamped_vec_env(2, kind, lengths=(9, 15), continuous=continuous)
        kwargs = small | _with_observation(kwargs or policy_kwargs(), kind)
        model: BaseAlgorithm = algorithm(
            policy, env, policy_kwargs=kwargs, seed=0, **(fixed | changes)
        )
        return model

    return build


def _off_policy(
    algorithm: Any,
    policy: str = "CnnPolicy",
    kind: type[StampedEnv] = StampedEnv,
    *,
    continuous: bool,
    **fixed: Any,
) -> Build:
    def build(kwargs: dict[str, Any] | None = None, **changes: Any) -> BaseAlgorithm:
        env = stamped_vec_env(1, kind, lengths=(9, 15), continuous=continuous)
        settings = {"buffer_size": 200, "learning_starts": 60, "batch_size": 16} | fixed | changes
        kwargs = _with_observation(kwargs or policy_kwargs(), kind)
        model: BaseAlgorithm = algorithm(policy, env, policy_kwargs=kwargs, seed=0, **settings)
        return model

    return build


PPO_SIZES: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 2}

A2C_SIZES: dict[str, Any] = {"n_steps": 16}

ALGORITHMS: dict[str, Build] = {
    "PPO": _on_policy(PPO, **PPO_SIZES),
    "A2C": _on_policy(A2C, **A2C_SIZES),
    "DQN": _off_policy(DQN, continuous=False, train_freq=4),
    "SAC": _off_policy(SAC, continuous=True, train_freq=4),
    "TD3": _off_policy(TD3, continuous=True, train_freq=4),
    "QRDQN": _off_policy(QRDQN, continuous=False, train_freq=4),
    "TQC": _off_policy(TQC, continuous=True, train_freq=4),
    "CrossQ": _off_policy(CrossQ, "MlpPolicy", continuous=True, train_freq=4),
    "MaskablePPO": _on_policy(MaskablePPO, **PPO_SIZES),
    "RecurrentPPO": _on_policy(RecurrentPPO, "CnnLstmPolicy", **PPO_SIZES),
}
TRPO_SIZES: dict[str, Any] = {"n_steps": 32, "batch_size": 32}
TRPO_BUILD = _on_policy(TRPO, **TRPO_SIZES)

_OF_VECTORS: tuple[Any, ...] = ("MlpPolicy", StampedVectorEnv)
VECTOR_ALGORITHMS: dict[str, Build] = {
    "PPO": _on_policy(PPO, *_OF_VECTORS, **PPO_SIZES),
    "A2C": _on_policy(A2C, *_OF_VECTORS, **A2C_SIZES),
    "DQN": _off_policy(DQN, *_OF_VECTORS, continuous=False, train_freq=4),
    "SAC": _off_policy(SAC, *_OF_VECTORS, continuous=True, train_freq=4),
    "TD3": _off_policy(TD3, *_OF_VECTORS, continuous=True, train_freq=4),
    "QRDQN": _off_policy(QRDQN, *_OF_VECTORS, continuous=False, train_freq=4),
    "TQC": _off_policy(TQC, *_OF_VECTORS, continuous=True, train_freq=4),
    "CrossQ": _off_policy(CrossQ, *_OF_VECTORS, continuous=True, train_freq=4),
    "MaskablePPO": _on_policy(MaskablePPO, *_OF_VECTORS, **PPO_SIZES),
    "RecurrentPPO": _on_policy(RecurrentPPO, "MlpLstmPolicy", StampedVectorEnv, **PPO_SIZES),
    "TRPO": _on_policy(TRPO, *_OF_VECTORS, **TRPO_SIZES),
}
"""The same on vectors, and TRPO, which trains an isolated encoder."""

RELATIVES = ("QRDQN", "TD3", "TQC", "CrossQ", "MaskablePPO")
"""Algorithms that train as DQN, SAC or PPO does, and are a further case of the same."""

N_STEPS = 96
"""Enough for every algorithm to train."""


def extractors_of(model: BaseAlgorithm) -> list[InfoNCEExtractor]:
    """Return the extractors that the model trains; never none."""
    found = trained_extractors(model.policy)
    assert found
    return found


def n_updates(model: BaseAlgorithm) -> int:
    """Return how many updates by the loss all extractors of the model had."""
    return sum(each._session.counts.n_updates for each in extractors_of(model))


def noise_images(n: int, shape: tuple[int, int, int] = IMAGE_SHAPE) -> torch.Tensor:
    """Return the same noise [n, *shape] as uint8 every time."""
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, *shape), np.uint8))


def saved(folder: Path, model: BaseAlgorithm) -> Path:
    """Save the model in `folder`; return the file."""
    model.save(folder / "model.zip")
    return folder / "model.zip"


class _Recorder(KVWriter):
    """Keeps every number that is dumped."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[float]] = {}

    def write(
        self,
        key_values: dict[str, Any],
        key_excluded: dict[str, tuple[str, ...]],
        step: int = 0,
    ) -> None:
        for tag, number in key_values.items():
            self.numbers.setdefault(tag, []).append(number)

    def close(self) -> None:
        pass


def record_logger(model: BaseAlgorithm) -> dict[str, list[float]]:
    """Give the model a logger; return what it writes, tag to numbers."""
    recorder = _Recorder()
    model.set_logger(Logger(None, [recorder]))
    return recorder.numbers


def streams() -> tuple[Any, ...]:
    """Return the state of every random stream of the process."""
    numpy_state = np.random.get_state()  # noqa: NPY002 (the host's own stream)
    return torch.get_rng_state().tolist(), random.getstate(), repr(numpy_state)


def weights_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of everything in the state dict."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def plain_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of the state dict without what only the plugin has."""
    own = ("infonce.", "target.average", "target.n_updates", "own_updates.")
    return {
        name: tensor
        for name, tensor in weights_of(module).items()
        if not any(part in name for part in own)
    }


def assert_same_weights(
    first: torch.nn.Module, second: torch.nn.Module, *, with_own: bool = False
) -> None:
    """Fail unless both modules are bit-identical, `with_own` in the plugin's own entries also."""
    weights = weights_of if with_own else plain_weights
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    differing = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not differing


def assert_all_moved(extractor: InfoNCEExtractor, before: dict[str, torch.Tensor]) -> None:
    """Fail if a parameter is still what `weights_of` returned before."""
    still = [n for n, now in extractor.named_parameters() if torch.equal(before[n], now)]
    assert not still
