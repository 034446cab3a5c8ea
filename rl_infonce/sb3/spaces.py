"""What the extractor accepts: an image or a vector, and emulators that skip frames once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

from rl_infonce.checks import warn_user


def check_observation_space(space: spaces.Space[Any], *, normalized_image: bool) -> spaces.Box:
    """Return the space if it holds one vector or one channels-first image.

    Args:
        space: What the algorithm observes.
        normalized_image: Whether images of any dtype and bounds are accepted.

    Raises:
        TypeError: If the space is not a Box.
        ValueError: If it has no dimension, or is neither a vector nor an image, or its channels
            come last.
    """
    if isinstance(space, spaces.Dict):
        raise TypeError(
            "Expected `observation_space` to be one image or vector (Box), got a Dict with keys "
            f"{sorted(space.spaces)}. Take rl_infonce.InfoNCECombinedExtractor, which encodes its "
            "images or vectors and joins the rest to their features."
        )
    if not isinstance(space, spaces.Box):
        raise TypeError(
            f"Expected `observation_space` to be a Box, an image or a vector, got {space}. "
            f"{_way_to_a_box(space)}"
        )
    if 0 in space.shape:
        raise ValueError(
            "Expected `observation_space` to have at least one dimension, got shape "
            f"{space.shape}. Observe at least one number."
        )
    if not is_vector(space):
        _check_image(space, normalized_image=normalized_image)
    return space


def check_observed_alike(
    model: BaseAlgorithm, encoded: spaces.Space[Any], observation_key: str | None
) -> None:
    """Raise if a model's observations, or their entry, have another shape than what is encoded.

    Raises:
        ValueError: As where an extractor of one's own cuts what it hands on.
    """
    observed = getattr(model, "observation_space", None)
    if isinstance(observed, spaces.Dict):
        observed = observed.spaces.get(str(observation_key))
    if isinstance(observed, spaces.Box) and observed.shape != encoded.shape:
        raise ValueError(
            f"Expected `observation_space` of InfoNCEExtractor to have the shape {observed.shape} "
            f"of what {type(model).__name__} observes, got {encoded.shape}: the loss reads "
            "observations where the buffer keeps them. Cut or change them in a wrapper of the "
            "environment, not in an extractor around this one."
        )


def is_vector(space: spaces.Space[Any]) -> bool:
    """Return whether a space holds vectors."""
    return isinstance(space, spaces.Box) and len(space.shape) == 1


def _way_to_a_box(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Text | spaces.Graph | spaces.Sequence):
        return "Encode it into an array of one size first, in a wrapper of your own."
    return "gymnasium.wrappers.FlattenObservation makes a vector of it."


def _way_to_channels(space: spaces.Box) -> str:
    flat = "gymnasium.wrappers.FlattenObservation makes a vector of it."
    if len(space.shape) != 2:
        return flat
    return (
        "Of images without a channel, gymnasium.wrappers.FrameStackObservation(env, 4) makes "
        f"images of 4; {flat}"
    )


def _check_image(space: spaces.Box, *, normalized_image: bool) -> None:
    if len(space.shape) != 3:
        raise ValueError(
            "Expected `observation_space` to hold vectors [n] or channels-first images [C, H, W], "
            f"got shape {space.shape}. {_way_to_channels(space)}"
        )
    if not is_image_space(space, check_channels=False, normalized_image=normalized_image):
        raise ValueError(
            "Expected `observation_space` to be uint8 with bounds 0 and 255, got "
            f"{space.dtype} with bounds {space.low.min()} and {space.high.max()}. For images that "
            "are normalised already (VecNormalize), pass policy_kwargs normalize_images=False, and "
            "observe them channels-first, as SB3 transposes images of uint8 alone."
        )
    if not is_image_space_channels_first(space):
        raise ValueError(
            f"Expected `observation_space` to be channels-first [C, H, W], got {space.shape}. "
            "SB3 transposes images of uint8 in the environment of an algorithm; transpose others "
            "in a wrapper of your own."
        )


def resolve_horizons(
    horizons: Sequence[int] | None, shape: tuple[int, ...], objective: object = "infonce"
) -> tuple[int, ...]:
    """Return the horizons, by default 1 of vectors and for images the smallest without overlap.

    That is the smallest, and at least 4, whose stacks share no frame. Warns where anchor and
    positive share frames, unless the objective is the user's own; 0 means two views of one image.
    """
    if len(shape) == 1:
        return _ascending(horizons or (1,))
    stack = 1 if shape[0] == 3 else shape[0]  # 3 channels are one frame of RGB, others are gray
    if horizons is None:
        return (max(4, stack),)
    short = [k for k in horizons if 0 < k < stack]
    if short and not callable(objective):
        n_rgb = stack // 3 if stack % 3 == 0 else stack
        unless = f" If its channels are {n_rgb} frames of RGB, {n_rgb} will do." * (n_rgb < stack)
        warn_user(
            f"horizons={short} are shorter than the stack of {stack} frames: anchor and positive "
            f"share {stack - min(short)} frames, so that matching pixels solves the task. Use "
            f"horizons >= {stack}, or compare infonce/accuracy_k{short[0]} with "
            f"infonce/floor_pixels_k{short[0]}.{unless}",
        )
    return _ascending(horizons)


def _ascending(horizons: Sequence[int]) -> tuple[int, ...]:
    """Return horizons from the smallest one on, as ints of Python's, which JSON takes also."""
    return tuple(sorted(map(int, horizons)))


def check_single_frame_skip(algorithm: BaseAlgorithm) -> None:
    """Raise if SB3's Atari wrapper skips frames on top of an emulator that skips them itself.

    Raises:
        ValueError: If an `ALE/*-v5` environment sits inside a frame-skipping wrapper.
    """
    from stable_baselines3.common.atari_wrappers import MaxAndSkipEnv

    env = algorithm.env
    if env is None:
        return
    try:
        if not (env.env_is_wrapped(MaxAndSkipEnv)[0] and env.has_attr("_frameskip")):
            return
        skipped = env.get_attr("_frameskip")[0]
        # A spec holds the arguments of all wrappers, which may not travel between processes.
        found = re.search(r"<(ALE/(\S+)-v\d+)>", env.env_method("__str__")[0])
    except (AttributeError, NotImplementedError, TypeError, LookupError):
        return  # an environment that is not SB3's own may answer anything
    if found is not None and skipped != 1:
        env_id, game = found.groups()
        raise ValueError(
            f"Expected `env` to skip frames once, got {env_id} (frameskip={skipped}) inside a "
            "wrapper that skips 4 more: 16 frames a step, with sticky actions. Use "
            f'make_atari_env("{game}NoFrameskip-v4"), or rl_infonce.make_atari_vec_env("{game}").'
        )
