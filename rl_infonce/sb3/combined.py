"""InfoNCECombinedExtractor: dictionaries whose images or vectors learn their future."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    NatureCNN,
)
from torch import nn

from rl_infonce.checks import check_choice, check_count
from rl_infonce.presets import (
    OF_IMAGES,
    OF_VECTORS,
    PRESETS,
    PRESETS_OF_IMAGES,
    PRESETS_OF_VECTORS,
    usual_preset,
)
from rl_infonce.sb3.binding import is_built_off_policy
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.sb3.spaces import is_vector
from rl_infonce.settings import InfoNCESettings, declared

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
        keys: Entries that are encoded; None means all images, and all vectors where there is none,
            without the goals of a goal environment.
        settings: Arguments of every `InfoNCEExtractor`, except `observation_key` and
            `features_dim`. Where images and vectors are encoded, what fits one kind alone does not
            reach the other. Vectors are isolated and images are not, unless `isolated` or the
            preset says so: what fits isolated encoders alone, or others alone, reaches these.

    Raises:
        TypeError: If the space is no Dict, or an argument has the wrong type.
        ValueError: If there is nothing to encode, or an argument is out of range.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        cnn_output_dim: int | None = None,
        normalized_image: bool = False,
        keys: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(observation_space, spaces.Dict):
            raise TypeError(
                f"Expected `observation_space` to be a Dict, got {observation_space}. A single "
                "image or vector needs InfoNCEExtractor."
            )
        if cnn_output_dim is not None:
            check_count("cnn_output_dim", cnn_output_dim)
        _check_settings(settings)
        # CombinedExtractor's own constructor builds a NatureCNN for every image.
        BaseFeaturesExtractor.__init__(self, observation_space, features_dim=1)
        encoded = encoded_keys(observation_space, keys, normalized_image=normalized_image)
        is_custom = callable(settings.get("encoder"))
        if is_custom and cnn_output_dim is not None:
            _check_has_other_images(observation_space, encoded, cnn_output_dim, normalized_image)
        are_mixed = len({is_vector(observation_space[key]) for key in encoded}) > 1
        extractors: dict[str, nn.Module] = {}
        n_features = 0
        for key, space in observation_space.spaces.items():
            is_image = is_image_space(space, normalized_image=normalized_image)
            size = (cnn_output_dim or 256) if is_image else cnn_output_dim
            if key in encoded:
                extractors[key] = InfoNCEExtractor(
                    space,
                    None if is_custom else size,
                    observation_key=key,
                    normalized_image=normalized_image,
                    **(_settings_of(space, settings) if are_mixed else settings),
                )
            elif is_image:
                extractors[key] = NatureCNN(space, cnn_output_dim or 256, normalized_image)
            else:
                extractors[key] = nn.Flatten()
            n_features += getattr(extractors[key], "features_dim", get_flattened_obs_dim(space))
        self.extractors = nn.ModuleDict(extractors)
        self._features_dim = n_features


def _settings_of(space: spaces.Space[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that an entry takes, where images and vectors are encoded."""
    vectors = is_vector(space)
    others = OF_IMAGES if vectors else OF_VECTORS
    left_out = others - ({"encoder"} if callable(settings.get("encoder")) else set())
    own, other = (_preset_of(settings, vectors=each) for each in (vectors, not vectors))
    if settings.get("isolated") is None:
        left_out = left_out | _unfit_for_isolation(settings, own, other)
    taken = {name: value for name, value in settings.items() if name not in left_out}
    return taken | {"preset": own}


def _preset_of(settings: Mapping[str, Any], *, vectors: bool) -> str:
    """Return the preset that was given, or the usual one where that fits the other kind alone."""
    usual = usual_preset(vectors=vectors)
    given = settings.get("preset") or usual
    check_choice("preset", given, PRESETS)
    of_vectors = () if callable(settings.get("encoder")) else PRESETS_OF_VECTORS  # has no lasso
    return usual if given in (PRESETS_OF_IMAGES if vectors else of_vectors) else given


def _unfit_for_isolation(settings: Mapping[str, Any], preset: str, other: str) -> set[str]:
    """Return settings that fit entries of another preset alone, where one of the two isolates."""
    own, others = PRESETS[preset].isolated, PRESETS[other].isolated
    if own == others:
        return set()
    needs = {name: each.needs for name, each in declared(InfoNCESettings).items()}
    unfit = {name for name in needs if needs[name] == ("isolated", others)}
    if own and settings.get("pairs_from") == "minibatch":
        unfit.add("pairs_from")
    if own and not is_built_off_policy():
        unfit.add("infonce_interval")
    return unfit


def _check_has_other_images(
    space: spaces.Dict, encoded: set[str], cnn_output_dim: int, normalized_image: bool
) -> None:
    """Raise a ValueError unless there is an image for SB3's CNN beside a custom encoder."""
    others = [space[key] for key in space.spaces.keys() - encoded]
    if not any(is_image_space(each, normalized_image=normalized_image) for each in others):
        raise ValueError(
            "Expected `cnn_output_dim` with the encoders of rl_infonce, or with images that are "
            f"not encoded, got {cnn_output_dim} with an encoder of your own, whose output says how "
            "many features it has. Leave it out."
        )


def encoded_keys(
    space: spaces.Dict, keys: Sequence[str] | None, *, normalized_image: bool
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
    # Goals do not change with time: each would be told from others by its episode alone.
    are_goals = space.keys() > _GOALS and bool((images or vectors) - _GOALS)
    return asked or (images or vectors) - (_GOALS if are_goals else set())


def _described(space: spaces.Space[Any]) -> str:
    return f"{type(space).__name__} {space.dtype} {space.shape}"


def _check_settings(settings: dict[str, Any]) -> None:
    if "features_dim" in settings:
        raise TypeError("Expected `cnn_output_dim`, features per entry, got `features_dim`.")
    if "observation_key" in settings:
        raise TypeError(
            "Expected no `observation_key`, as each entry has its own loss, got "
            f"{settings['observation_key']!r}. Name entries by `keys`; an observation that is no "
            "Dict needs InfoNCEExtractor."
        )
