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
from rl_infonce.sb3.minibatch import MinibatchPairs


class Encoded(NamedTuple):
    """Features [K, D] and the convolutional map [K, C, H, W] they come from, if there is one."""

    features: Tensor
    maps: Tensor | None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The features, and the map if there is one."""
        return (self.features,) if self.maps is None else (self.features, self.maps)

    def detached(self) -> Encoded:
        """Return the same numbers outside the graph, which ask for a gradient as these do."""
        copies = [each.detach().requires_grad_(each.requires_grad) for each in self.tensors]
        return Encoded(copies[0], copies[1] if len(copies) > 1 else None)

    def rows(self, start: int | None, stop: int | None) -> Encoded:
        """Return a part of the batch."""
        return Encoded(
            self.features[start:stop], None if self.maps is None else self.maps[start:stop]
        )


Encode = Callable[[npt.NDArray[np.generic]], Encoded]
"""Raw observations [K, *observation] -> their features and maps."""


def contrast_batch(
    raw: ObservationBatch,
    encode: Encode,
    encode_target: Encode | None,
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


def contrast_minibatch(
    encoded: Encoded,
    missing: Encoded | None,
    pairs: MinibatchPairs,
    *,
    spatial: bool,
    stops_gradient: bool,
    actions: Tensor | None,
) -> ContrastBatch:
    """Take anchors and candidates from what RL has encoded.

    Args:
        encoded: The rows of RL's minibatch.
        missing: `pairs.missing`, or None where the minibatch holds every future.
        pairs: Which rows are contrasted.
        spatial: Whether the objective needs the convolutional maps.
        stops_gradient: Whether candidates have no gradient.
        actions: Encoded actions, handed on.
    """
    device = encoded.features.device
    of_missing = len(encoded.features) + np.arange(len(pairs.missing))
    futures = np.concatenate([pairs.futures, of_missing])[pairs.order]
    anchor_rows = torch.as_tensor(pairs.anchors, device=device)
    candidate_rows = torch.as_tensor(np.concatenate([futures, pairs.others]), device=device)

    def anchors_and_candidates(rows: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        known = rows if extra is None else torch.cat([rows, extra])
        # Its backward is faster than that of known[candidate_rows].
        candidates = known.index_select(0, candidate_rows)
        anchors = rows.index_select(0, anchor_rows)
        return anchors, candidates.detach() if stops_gradient else candidates

    anchors, candidates = anchors_and_candidates(
        encoded.features, None if missing is None else missing.features
    )
    anchor_maps = candidate_maps = None
    if spatial:
        assert encoded.maps is not None  # noqa: S101 (vectors have no spatial terms)
        anchor_maps, candidate_maps = anchors_and_candidates(
            encoded.maps, None if missing is None else missing.maps
        )
    return ContrastBatch(
        context=anchors[:, None],
        context_used=torch.ones(len(anchors), 1, dtype=torch.bool, device=device),
        futures=candidates[None],
        mask=torch.as_tensor(pairs.mask, device=device)[None],
        time_mask=torch.as_tensor(pairs.time_mask, device=device),
        actions=actions,
        anchor_maps=anchor_maps,
        future_maps=None if candidate_maps is None else candidate_maps[None],
        mask_excludes=not pairs.mask.all(),
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
