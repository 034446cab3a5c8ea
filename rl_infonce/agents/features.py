"""The features of any Stable-Baselines3 model as a function of raw observations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BaseModel, BasePolicy
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from rl_infonce.device import seeded_on_cpu
from rl_infonce.probing.features import evaluating
from rl_infonce.sb3.batch_encoding import preprocess
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.sb3.spaces import is_vector

FeatureFunction = Callable[[Tensor], Tensor]
"""Observations [B, ...] on any device -> features [B, D] on the model's device."""

_WAYS_OUT = {
    "images": "Train on environments with the standard preprocessing "
    "(rl_infonce.make_atari_vec_env, or SB3's make_atari_env with VecFrameStack 4), or pass "
    "LabelledObservations of that shape.",
    "vectors": "Label observations that are wrapped as those of training are.",
}
_ACTING = ("actor", "q_net", "quantile_net")
_ROWS_COUNTED = 1000


def acting_network(policy: BasePolicy) -> BaseModel:
    """Return the part of a policy that picks actions and owns the features they depend on.

    It is the actor for SAC, TD3, TQC and CrossQ, the online Q network for DQN, the online quantile
    network for QR-DQN, and for PPO, A2C and others the policy itself, whose `features_extractor` is
    the shared one or, with `share_features_extractor=False`, the actor's.
    """
    for name in _ACTING:
        network = getattr(policy, name, None)
        if isinstance(network, BaseModel):
            return network
    return policy


def acting_extractor(policy: BasePolicy) -> BaseFeaturesExtractor:
    """Return the features extractor of the acting network."""
    extractor = acting_network(policy).features_extractor
    if extractor is None:
        raise ValueError(
            f"Expected `policy` with a features extractor, got {type(policy).__name__} without one."
        )
    return extractor


def feature_function(
    model: BaseAlgorithm | BasePolicy, *, vec_normalize: VecNormalize | None = None
) -> FeatureFunction:
    """Return the function from raw observations to the features that a model acts on.

    Observations are preprocessed as SB3 does when the agent acts (and by the statistics of a
    `VecNormalize` around the environment). Each call runs in evaluation mode without gradients,
    and leaves every module in the mode it was in; an `InfoNCEExtractor` then neither computes its
    loss nor draws pairs. The function follows the model: after more training it returns the new
    features. A recurrent policy's features are those before its LSTM.

    Args:
        model: An algorithm or its policy.
        vec_normalize: Its statistics normalise the observations; None takes the algorithm's own.

    Returns:
        A function from images [B, C, H, W], channels first as in `model.observation_space`, or
        vectors [B, n], to float32 features [B, D] on the model's device.

    Raises:
        ValueError: If the function is called with observations of another shape than the model's,
            or the model observes dictionaries.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from stable_baselines3.common.envs import FakeImageEnv
        >>> env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=4, channel_first=True)
        >>> features = feature_function(PPO("CnnPolicy", env))
        >>> features(torch.zeros(2, 4, 36, 36, dtype=torch.uint8)).shape
        torch.Size([2, 512])
    """
    if vec_normalize is None and isinstance(model, BaseAlgorithm):
        vec_normalize = model.get_vec_normalize_env()

    def features(observations: Tensor) -> Tensor:
        policy = model if isinstance(model, BasePolicy) else model.policy
        network = acting_network(policy)
        _check_shape("observations", observations, network.observation_space)
        extractor = acting_extractor(policy)
        with evaluating(extractor), torch.no_grad():
            encoded: Tensor = extractor(network_inputs(network, observations, vec_normalize))
        return encoded.flatten(1).float()

    return features


def network_inputs(
    network: BaseModel, observations: Tensor, vec_normalize: VecNormalize | None
) -> Tensor:
    """Return raw observations [B, ...] as the network encodes them when the agent acts."""
    inputs = _normalized(observations, vec_normalize).to(network.device)
    space, normalize_images = network.observation_space, network.normalize_images
    return preprocess(inputs, space, normalize_images=normalize_images)


def untrained_policy(model: BaseAlgorithm, seed: int) -> BasePolicy:
    """Return a policy of the model's architecture with new weights, drawn from `seed` alone."""
    kwargs = dict(model.policy_kwargs)
    if "use_sde" not in kwargs and model.use_sde:
        kwargs["use_sde"] = True
    with seeded_on_cpu(seed):
        policy = model.policy_class(
            model.observation_space, model.action_space, model.lr_schedule, **kwargs
        )
    return policy.to(model.device)


def fitted_normalizer(
    vec_normalize: VecNormalize | None, observations: Sequence[Any]
) -> VecNormalize | None:
    """Return a copy, around no environment, that has counted raw observations [K, ...] alone.

    When training starts, VecNormalize has counted one observation of each environment: by these
    statistics an untrained network would read noise.
    """
    if vec_normalize is None or not vec_normalize.norm_obs:
        return vec_normalize
    moments = RunningMeanStd(shape=np.shape(observations[0]))
    for start in range(0, len(observations), _ROWS_COUNTED):  # in float64, so not all at once
        moments.update(np.asarray(observations[start : start + _ROWS_COUNTED]))
    fitted = copy.copy(vec_normalize)
    vars(fitted)["obs_rms"] = moments
    return fitted


def count_vectors(
    model: BaseAlgorithm | BasePolicy,
    vectors: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]],
    *,
    vec_normalize: VecNormalize | None = None,
) -> None:
    """Let the normalisation in a model's encoders count raw vectors, as training would.

    Call it on the demonstrations before a policy is cloned from them outside of `learn`, where
    nothing is counted: else the first `learn` changes the scale of what the policy has learned to
    read. Nothing else is trained. Networks without an `InfoNCEExtractor` of vectors stay as
    they are, as do frozen encoders that have counted 2,000 vectors.

    Example:
        >>> from stable_baselines3 import PPO
        >>> kwargs = {"features_extractor_class": InfoNCEExtractor}
        >>> model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs)
        >>> count_vectors(model, np.full((8, 4), 3.0, np.float32))
        >>> model.policy.features_extractor.encoder.means
        tensor([3., 3., 3., 3.])

    Args:
        model: An algorithm or its policy.
        vectors: [K, n] observations as the environment gives them, K >= 1; where these are
            dictionaries, a mapping from each entry to its [K, ...].
        vec_normalize: Its statistics normalise the vectors; None takes the algorithm's own.

    Raises:
        ValueError: If the vectors have another shape, or other entries, than the model's
            observations.
    """
    policy = model if isinstance(model, BasePolicy) else model.policy
    if vec_normalize is None and isinstance(model, BaseAlgorithm):
        vec_normalize = model.get_vec_normalize_env()
    inputs = _inputs_by_key(acting_network(policy), vectors, vec_normalize)
    for module in policy.modules():
        if isinstance(module, InfoNCEExtractor) and module.observation_key in inputs:
            module.encoder.update_statistics(inputs[module.observation_key])


def _inputs_by_key(
    network: BaseModel,
    vectors: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]],
    vec_normalize: VecNormalize | None,
) -> dict[str | None, Tensor]:
    """Return vectors as a network encodes them, by the `observation_key` of their encoders."""
    space = network.observation_space
    wanted = sorted(space.spaces) if isinstance(space, spaces.Dict) else None
    given = sorted(vectors) if isinstance(vectors, Mapping) else None
    if given != wanted:
        forms = [
            f"a mapping of {keys}" if keys is not None else "an array" for keys in (wanted, given)
        ]
        raise ValueError(
            f"Expected `vectors` to be {forms[0]}, as the model observes {space}, got {forms[1]}."
        )
    if not (isinstance(space, spaces.Dict) and isinstance(vectors, Mapping)):
        raw = torch.as_tensor(vectors)
        _check_shape("vectors", raw, space)
        return {None: network_inputs(network, raw, vec_normalize)}
    entries = {key: space[key] for key in space.spaces if is_vector(space[key])}
    for key, own in entries.items():
        _check_shape(f"vectors[{key!r}]", torch.as_tensor(vectors[key]), own)
    seen: Any = vectors
    if vec_normalize is not None and vec_normalize.norm_obs:
        seen = vec_normalize.normalize_obs(dict(vectors))
    return {
        key: preprocess(torch.as_tensor(seen[key]).to(network.device), own)
        for key, own in entries.items()
    }


def check_observes(
    model: BaseAlgorithm, shape: tuple[int, ...], dtype: npt.DTypeLike = np.uint8
) -> None:
    """Raise unless a model learns features from images (C, H, W) or vectors (n,) of this type."""
    space = model.observation_space
    kind = "images" if len(shape) == 3 else "vectors"
    wanted = f"{np.dtype(dtype)} {kind} {shape}"
    if not isinstance(space, spaces.Box):
        raise TypeError(
            f"Expected `model` to observe {wanted}, got {space}, which ProbeCallback does not "
            "read. Compute features [K, D] of labelled observations with the trained model, and "
            "score these by rl_infonce.probing.probe_features."
        )
    if space.shape != shape:
        raise ValueError(
            f"Expected `model` to observe {wanted}, as the labelled set holds, got {space.shape}. "
            f"{_WAYS_OUT[kind]}"
        )
    normalize = model.get_vec_normalize_env()
    normalizes = normalize is not None and normalize.norm_obs
    if normalize is not None and normalizes and normalize.observation_space.shape != shape:
        raise ValueError(
            f"Expected VecNormalize around {kind} {shape}, as the labelled set holds, got it "
            f"around {normalize.observation_space.shape}. Put it around the frame stack, or around "
            "images with channels first."
        )
    if space.dtype != dtype and not normalizes:
        raise ValueError(
            f"Expected `model` to observe {wanted}, got {space.dtype}: it is not known how these "
            "are made of them. Observe what was labelled, or use VecNormalize."
        )
    if isinstance(acting_extractor(model.policy), FlattenExtractor):
        way_out = "Use CnnPolicy." if kind == "images" else "Use InfoNCEExtractor."
        raise ValueError(
            f"Expected `model` to learn features from {kind}, got FlattenExtractor, whose features "
            f"are the observations themselves (MlpPolicy). {way_out}"
        )


def _check_shape(name: str, observations: Tensor, space: spaces.Space[Any]) -> None:
    shape = space.shape
    if shape is None:
        raise ValueError(f"Expected a model that observes one image or vector, got {space}.")
    if tuple(observations.shape[1:]) != shape:
        raise ValueError(
            f"Expected `{name}` of shape [B, *{shape}], got {tuple(observations.shape)}."
        )


def _normalized(images: Tensor, vec_normalize: VecNormalize | None) -> Tensor:
    if vec_normalize is None or not vec_normalize.norm_obs:
        return images
    normalized = vec_normalize.normalize_obs(images.cpu().numpy())
    assert isinstance(normalized, np.ndarray)  # noqa: S101 (narrows SB3's union type)
    return torch.as_tensor(normalized)
