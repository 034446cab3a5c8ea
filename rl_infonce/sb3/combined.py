"""InfoNCECombinedExtractor: dictionaries whose images or vectors learn their future."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    NatureCNN,
)
from torch import nn

from rl_infonce.checks import check_count
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.sb3.spaces import is_vector

_GOALS = {"achieved_goal", "desired_goal"}


class InfoNCECombinedExtractor(CombinedExtractor):
    """SB3's `CombinedExtractor` whose images are encoded by an `InfoNCEExtractor` each.

    Where there is no image, vectors are encoded; `keys` names the entries instead. Each encoded
    entry has its own loss. The other entries have none, no loss sees them, and they are joined to
    the features as SB3 does: flattened, and images behind a `NatureCNN`.

    Example:
        >>> import gymnasium, numpy as np
        >>> from stable_baselines3 import PPO
        >>> from stable_baselines3.common.envs import FakeImageEnv
        >>> class WithSpeed(gymnasium.ObservationWrapper):
        ...     def __init__(self, env):
        ...         super().__init__(env)
        ...         speed = gymnasium.spaces.Box(-1, 1, (2,))
        ...         space = gymnasium.spaces.Dict(camera=env.observation_space, speed=speed)
        ...         self.observation_space = space
        ...     def observation(self, image):
        ...         return {"camera": image, "speed": np.zeros(2, np.float32)}
        >>> env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=4, channel_first=True)
        >>> kwargs = {"features_extractor_class": InfoNCECombinedExtractor}
        >>> sizes = {"n_steps": 64, "batch_size": 32, "policy_kwargs": kwargs, "seed": 0}
        >>> model = PPO("MultiInputPolicy", WithSpeed(env), **sizes).learn(64)
        >>> camera = model.policy.features_extractor.extractors["camera"]
        >>> camera.last_infonce["loss"] > 0
        True

    Args:
        observation_space: A dictionary with at least one channels-first image or vector.
        cnn_output_dim: Features of each image and encoded entry, >= 1, but for an encoder of your
            own; None means 256 of images and what `InfoNCEExtractor` has for vectors.
        normalized_image: Whether images are floats already; SB3 sets it for normalize_images=False.
        keys: Entries that are encoded, or each with settings of its own, which come before those of
            all: {"camera": {"preset": "atc"}, "speed": {}}. None means all images, and all vectors
            where there is none, without the goals of a goal environment.
        settings: Arguments of every `InfoNCEExtractor`, except `observation_key` and
            `features_dim`.

    Raises:
        TypeError: If the space is no Dict, or an argument has the wrong type.
        ValueError: If there is nothing to encode, or an argument is out of range.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        cnn_output_dim: int | None = None,
        normalized_image: bool = False,
        keys: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(observation_space, spaces.Dict):
            raise TypeError(
                f"Expected `observation_space` to be a Dict, got {observation_space}. A single "
                "image or vector needs InfoNCEExtractor."
            )
        own = _own_settings(keys, settings)
        # CombinedExtractor's own constructor builds a NatureCNN for every image.
        BaseFeaturesExtractor.__init__(self, observation_space, features_dim=1)
        encoded = encoded_keys(observation_space, keys, normalized_image=normalized_image)
        given = {key: {**settings, **own.get(key, {})} for key in encoded}
        if cnn_output_dim is not None:
            check_count("cnn_output_dim", cnn_output_dim)
            _check_is_used(cnn_output_dim, observation_space, given, normalized_image)
        extractors: dict[str, nn.Module] = {}
        n_features = 0
        for key, space in observation_space.spaces.items():
            is_image = is_image_space(space, normalized_image=normalized_image)
            size = (cnn_output_dim or 256) if is_image else cnn_output_dim
            if key in encoded:
                with _named(key, of_several=len(encoded) > 1):
                    extractors[key] = InfoNCEExtractor(
                        space,
                        None if callable(given[key].get("encoder")) else size,
                        observation_key=key,
                        normalized_image=normalized_image,
                        **given[key],
                    )
            elif is_image:
                extractors[key] = NatureCNN(space, cnn_output_dim or 256, normalized_image)
            else:
                extractors[key] = nn.Flatten()
            n_features += getattr(extractors[key], "features_dim", get_flattened_obs_dim(space))
        self.extractors = nn.ModuleDict(extractors)
        self._features_dim = n_features


@contextlib.contextmanager
def _named(key: str, *, of_several: bool) -> Iterator[None]:
    """Say of an error which of several entries it is about, and how entries are set apart."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not of_several:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"For entry {key!r}: {error} Settings of some entries alone go into `keys`, as in "
            f"keys={{{key!r}: {{'preset': 'cpc'}}, ...}}."
        ) from error


def _check_is_used(
    cnn_output_dim: int,
    space: spaces.Dict,
    given: Mapping[str, Mapping[str, Any]],
    normalized_image: bool,
) -> None:
    """Raise a ValueError if all encoders are the user's own, and no image is left to SB3's CNN."""
    are_custom = all(callable(each.get("encoder")) for each in given.values())
    others = [space[key] for key in space.spaces.keys() - given.keys()]
    images = [each for each in others if is_image_space(each, normalized_image=normalized_image)]
    if are_custom and not images:
        raise ValueError(
            "Expected `cnn_output_dim` with the encoders of rl_infonce, or with images that are "
            f"not encoded, got {cnn_output_dim} with an encoder of your own, whose output says how "
            "many features it has. Leave it out."
        )


def encoded_keys(
    space: spaces.Dict, keys: Collection[str] | None, *, normalized_image: bool
) -> set[str]:
    """Return which entries of a dictionary are encoded.

    Args:
        space: The dictionary.
        keys: Those that were asked for; None means all images, and all vectors where there is none,
            without the goals of a goal environment.
        normalized_image: Whether images are floats already.

    Raises:
        ValueError: If an entry that was asked for is missing, or is neither an image nor a vector,
            or there is nothing to encode, or an entry of the dictionary has no number.
    """
    empty = [key for key, each in space.items() if 0 in (each.shape or ())]
    if empty:
        raise ValueError(
            f"Expected entries of `observation_space` with at least one number, got {empty} "
            "without. Leave them out in a wrapper: SB3 cannot read empty ones."
        )
    images = {k for k, s in space.items() if is_image_space(s, normalized_image=normalized_image)}
    vectors = {key for key, each in space.items() if is_vector(each)}
    asked = {keys} if isinstance(keys, str) else set(keys or ())
    unfit = sorted(asked - images - vectors)
    if unfit or (keys is not None and not asked):
        raise ValueError(
            "Expected `keys` to name images or vectors, of which there are "
            f"{sorted(images | vectors)}, got {unfit or list(asked)}. Leave it out to encode "
            "every image, or every vector where there is no image, but for goals."
        )
    if not images | vectors:
        listed = {key: _described(each) for key, each in space.items()}
        raise ValueError(
            "Expected `observation_space` to hold a Box that is a uint8 image [C, H, W] or a "
            f"vector [n], got {listed}. Make entries such as MultiBinary a Box in a wrapper; "
            "without one there is nothing to contrast, and SB3's CombinedExtractor serves."
        )
    # A desired goal stands still: it would be told from others by its episode alone.
    are_goals = space.keys() > _GOALS and bool((images or vectors) - _GOALS)
    return asked or (images or vectors) - (_GOALS if are_goals else set())


def _described(space: spaces.Space[Any]) -> str:
    return f"{type(space).__name__} {space.dtype} {space.shape}"


def _own_settings(keys: Any, shared: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return what `keys` says of entries alone, or raise a TypeError about what none can have."""
    own = keys if isinstance(keys, Mapping) else {}
    for key, each in own.items():
        if not isinstance(each, Mapping):
            raise TypeError(
                "Expected `keys` to give entries their settings by name, as in "
                f"{{{key!r}: {{'preset': 'cpc'}}}}, got {each!r} for {key!r}."
            )
    for where, given in [("", shared), *((f" for {key!r}", each) for key, each in own.items())]:
        if "features_dim" in given:
            raise TypeError(
                f"Expected `cnn_output_dim`, features per entry, got `features_dim`{where}."
            )
        if "observation_key" in given:
            raise TypeError(
                "Expected no `observation_key`, as each entry has its own loss, got "
                f"{given['observation_key']!r}{where}. Name entries by `keys`; an observation that "
                "is no Dict needs InfoNCEExtractor."
            )
    return own
