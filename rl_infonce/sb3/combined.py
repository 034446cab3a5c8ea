"""InfoNCECombinedExtractor: dictionaries of observations whose images learn their future."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor
from torch import nn

from rl_infonce.checks import check_count
from rl_infonce.sb3.extractor import InfoNCEExtractor


class InfoNCECombinedExtractor(CombinedExtractor):
    """SB3's `CombinedExtractor` whose images are encoded by an `InfoNCEExtractor` each.

    Entries that are no images are flattened and joined to the images' features, as SB3 does. Each
    image has its own loss; the other entries have none, and no loss sees them.

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
        observation_space: A dictionary with at least one channels-first image.
        cnn_output_dim: Features of each image, >= 1.
        normalized_image: Whether images are floats already; SB3 sets it for normalize_images=False.
        settings: Arguments of every `InfoNCEExtractor`, except `observation_key` and `features_dim`.

    Raises:
        TypeError: If the space is no Dict, or an argument has the wrong type.
        ValueError: If there is no image, or an argument is out of range.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        cnn_output_dim: int = 256,
        normalized_image: bool = False,
        **settings: Any,
    ) -> None:
        _check_dict(observation_space, normalized_image)
        check_count("cnn_output_dim", cnn_output_dim)
        if "features_dim" in settings:
            raise TypeError("Expected `cnn_output_dim`, features per image, got `features_dim`.")
        if "observation_key" in settings:
            raise TypeError(
                "Expected no `observation_key`, as each image has its own loss, got "
                f"{settings['observation_key']!r}. Leave it out; a single image needs InfoNCEExtractor."
            )
        # CombinedExtractor's own constructor builds a NatureCNN for every image.
        BaseFeaturesExtractor.__init__(self, observation_space, features_dim=1)
        extractors: dict[str, nn.Module] = {}
        n_features = 0
        for key, space in observation_space.spaces.items():
            if is_image_space(space, normalized_image=normalized_image):
                extractors[key] = InfoNCEExtractor(
                    space,
                    cnn_output_dim,
                    observation_key=key,
                    normalized_image=normalized_image,
                    **settings,
                )
                n_features += cnn_output_dim
            else:
                extractors[key] = nn.Flatten()
                n_features += get_flattened_obs_dim(space)
        self.extractors = nn.ModuleDict(extractors)
        self._features_dim = n_features


def _check_dict(space: spaces.Space[Any], normalized_image: bool) -> None:
    if not isinstance(space, spaces.Dict):
        raise TypeError(
            f"Expected `observation_space` to be a Dict, got {space}. A single image needs "
            "InfoNCEExtractor."
        )
    if not any(is_image_space(s, normalized_image=normalized_image) for s in space.values()):
        listed = {key: f"{s.dtype} {s.shape}" for key, s in space.items()}
        raise ValueError(
            f"Expected `observation_space` to hold a uint8 image [C, H, W], got {listed}. Without "
            "one there is nothing to contrast: use SB3's CombinedExtractor."
        )
