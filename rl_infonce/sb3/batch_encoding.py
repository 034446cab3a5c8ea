"""From raw observations to the encoded batch that the objective contrasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from torch import Tensor

from rl_infonce.objective import ContrastBatch
from rl_infonce.sb3.batch_sampling import ObservationBatch


class Encoded(NamedTuple):
    """Features [K, D] and the convolutional map [K, C, H, W] they come from, if there is one."""

    features: Tensor
    maps: Tensor | None

    def rows(self, start: int | None, stop: int | None) -> Encoded:
        """Return a part of the batch."""
        return Encoded(
            self.features[start:stop], None if self.maps is None else self.maps[start:stop]
        )


Encoder = Callable[[npt.NDArray[np.generic]], Encoded]
"""Raw observations [K, *observation] -> their features and maps."""


def contrast_batch(
    raw: ObservationBatch,
    encode: Encoder,
    encode_target: Encoder | None,
    *,
    spatial: bool,
    actions: Tensor | None,
) -> ContrastBatch:
    """Encode anchors and futures.

    Args:
        raw: What was drawn.
        encode: The online encoder.
        encode_target: Encoder of the futures, run without gradients; None encodes anchors and
            futures in one pass of `encode`.
        spatial: Whether the objective needs the convolutional maps.
        actions: Encoded actions, handed on.
    """
    n_anchors, length = raw.context.shape[:2]
    image_shape = raw.context.shape[2:]
    context = raw.context.reshape(-1, *image_shape)
    futures = raw.futures.reshape(-1, *image_shape)
    if encode_target is None:
        both = encode(np.concatenate([context, futures]))
        past, future = both.rows(None, len(context)), both.rows(len(context), None)
    else:
        past = encode(context)
        with torch.no_grad():
            future = encode_target(futures)
    device = past.features.device
    return ContrastBatch(
        context=_split(past.features, n_anchors, length),
        context_used=torch.as_tensor(raw.context_used, device=device),
        futures=_split(future.features, -1, n_anchors),
        mask=torch.as_tensor(raw.mask, device=device),
        time_mask=torch.as_tensor(raw.time_mask, device=device),
        actions=actions,
        anchor_maps=_maps(past, n_anchors, length)[:, -1] if spatial else None,
        future_maps=_maps(future, -1, n_anchors) if spatial else None,
        mask_excludes=not raw.mask.all(),  # asked here, where it waits for no device
    )


def _maps(encoded: Encoded, *sizes: int) -> Tensor:
    assert encoded.maps is not None  # noqa: S101 (vectors have no spatial terms)
    return _split(encoded.maps, *sizes)


def _split(encoded: Tensor, *sizes: int) -> Tensor:
    return encoded.reshape(*sizes, *encoded.shape[1:])


def autocast(device_type: str, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context of bfloat16 autocast for "bf16", and for "fp32" one that changes nothing."""
    if precision == "bf16":
        return torch.autocast(device_type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def preprocess(
    inputs: Tensor, space: spaces.Space[Any], *, normalize_images: bool = True
) -> Tensor:
    """Return observations or actions as SB3 feeds them to a network.

    Args:
        inputs: [K, ...] elements of `space`.
        space: Space of one observation or action; not a Dict.
        normalize_images: Whether uint8 images are divided by 255.
    """
    preprocessed = preprocess_obs(inputs, space, normalize_images)
    assert isinstance(preprocessed, Tensor)  # noqa: S101 (narrows SB3's union type)
    return preprocessed


def encode_actions(
    actions: npt.NDArray[np.generic], space: spaces.Space[Any], device: torch.device
) -> Tensor:
    """Return actions [B, L, *action] as floats [B, L, A]; discrete ones become one-hot."""
    n_anchors, n_steps = actions.shape[:2]
    flat = torch.as_tensor(actions, device=device).reshape(n_anchors * n_steps, -1)
    return _split(preprocess(flat, space), n_anchors, n_steps).flatten(2)
