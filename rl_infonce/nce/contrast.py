"""InfoNCE straight from embeddings."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_infonce.checks import check_count, check_number, check_shape
from rl_infonce.nce._candidates import (
    check_finite,
    check_floating,
    check_like,
    expand_mask,
    positives_of,
    warn_of_rows,
)
from rl_infonce.nce._negatives import Negatives, timeline
from rl_infonce.nce._precision import (
    at_least_float32,
    autocast_off,
    in_range,
    lengths,
    unit_vectors,
)
from rl_infonce.nce.tiled import tiled_info_nce

# Measured on a CPU at D = 128: the batch from which tiles win, and their best side.
CROSSOVER = {"one way": 1200, "symmetric": 512}
BEST_TILE = 768
# On a GPU all scores at once are always faster: only memory asks for tiles, and for large ones.
DEVICE_CROSSOVER, DEVICE_TILE = 16_384, 8192


def contrast(
    anchors: Tensor,
    candidates: Tensor,
    *,
    scale: float | Tensor = 1.0,
    symmetric: bool = False,
    mask: Tensor | None = None,
    normalize: bool = False,
    offset: int = 0,
    episodes: Tensor | None = None,
    times: Tensor | None = None,
    min_gap: int = 1,
    tile: int | Literal["auto"] | None = "auto",
    validate_args: bool = True,
) -> Tensor:
    """Return the InfoNCE loss of each anchor against embedded candidates.

    The scores are scale * anchors @ candidates.T, computed in at least float32: bfloat16 products
    near 100 lie 0.5 apart. Products of float32 are as exact as `torch.set_float32_matmul_precision`
    allows: leave it at its default, "highest", for large scales. See `info_nce` and
    `symmetric_info_nce` for the losses and `tiled` for how large batches do without the [B, M]
    scores: then memory grows with B + M, and the loss can be differentiated only once.

    Args:
        anchors: [B, D].
        candidates: [M, D], M >= B; candidate i + offset is the positive of anchor i.
        scale: One over the temperature, > 0; a 0-dim tensor receives a gradient and its sign is
            the caller's duty.
        symmetric: Whether to average with the loss of candidates picking anchors; needs M = B.
        mask: Boolean, broadcastable to [B, M]; True = this candidate takes part.
        normalize: Whether to divide anchors and candidates by their length, so that scores are
            scaled cosines. A zero vector scores 0.
        offset: Which candidate is the positive of the first anchor, 0 to M - B. With `gather`ed
            candidates rank * B, if every rank has B anchors.
        episodes: [M] integers that differ between any two episodes of any environment. With
            `times`, candidates near the positive of an anchor in its episode take no part, as in
            `rl_infonce.temporal.negative_mask`, without ever holding a [B, M] mask.
        times: [M] integers, the step within the episode.
        min_gap: Fewer steps apart than this, candidates of one episode are no negatives of one
            another; 0 masks nothing, 1 masks exact repetitions of the positive.
        tile: Rows and columns of scores held at a time; None for all scores at once, "auto" for
            whichever was measured faster on a CPU. On a GPU all at once was always faster, and
            "auto" takes tiles only to save memory, from as many scores as 16384 x 16384.
        validate_args: Whether to check values as well as shapes: that losses are finite, positives
            allowed by `mask`, and that each anchor has a negative, else a warning names it.

    Returns:
        [B] losses in nats, >= 0, float32 or float64; 0 for an anchor without negatives, which is no
        fit: leave it out of the mean.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a shape or device does not fit, a number is out of range, a loss is not
            finite, `mask` excludes a positive or one of `episodes` and `times` is missing.

    Example:
        >>> import torch
        >>> contrast(torch.eye(3), torch.eye(3), scale=2.0)
        tensor([0.2395, 0.2395, 0.2395])
    """
    n_rows, n_columns = _check_embeddings(anchors, candidates, symmetric)
    _check_scale(scale)
    side = _automatic_side(anchors, n_columns, symmetric) if tile == "auto" else _checked_side(tile)
    _check_offset(offset, n_columns - n_rows)
    if validate_args and (mask is not None or episodes is not None):
        check_finite("candidates", candidates)  # NaN of one left out reaches all gradients
    if mask is not None:
        if offset and mask.ndim and mask.shape[-1] == n_columns:  # else it broadcasts
            mask = mask.roll(-offset, dims=-1)
        mask = _checked_mask(
            anchors, n_columns, mask, symmetric, offset, validate_args=validate_args
        )
    negatives = _negatives(n_columns, mask, episodes, times, min_gap, offset)
    if offset:
        candidates = candidates.roll(-offset, dims=0)  # a softmax ignores the order of columns
    with autocast_off(anchors):
        if side is None:
            scores = _scores(anchors, candidates, scale, normalize)
            losses = _dense_info_nce(scores, negatives, symmetric)
        else:
            rows, columns = anchors, candidates
            if normalize:
                rows = unit_vectors(at_least_float32(anchors))
                columns = unit_vectors(at_least_float32(candidates))
            factor = torch.as_tensor(scale, dtype=at_least_float32(anchors).dtype)
            losses = tiled_info_nce(
                rows, columns, factor, negatives, symmetric=symmetric, tile=side
            )
    if validate_args:
        _check_losses(losses, anchors, candidates)
        _warn_of_lone_anchors(losses, n_columns, negatives)
    return losses


def _scores(anchors: Tensor, candidates: Tensor, scale: float | Tensor, normalize: bool) -> Tensor:
    """Return scores [B, M]; one factor per anchor scales, and normalises, at [B, D] products."""
    anchors, candidates = at_least_float32(anchors), at_least_float32(candidates)
    if not normalize:
        return (scale * anchors) @ candidates.T
    anchors = in_range(anchors)
    return (anchors * (scale / lengths(anchors))) @ unit_vectors(candidates).T


def _dense_info_nce(scores: Tensor, negatives: Negatives, symmetric: bool) -> Tensor:
    """Return `info_nce` or `symmetric_info_nce` of scores known to be in order.

    To check and reshape them again takes a tenth of the time at a batch of 256.
    """
    n_rows, n_columns = scores.shape
    excluded = negatives.excluded(slice(0, n_rows), slice(0, n_columns))
    if excluded is not None:
        scores = scores.masked_fill(excluded, -math.inf)
    positives = torch.arange(n_rows, device=scores.device)
    losses = F.cross_entropy(scores, positives, reduction="none")  # [B]
    if not symmetric:
        return losses
    return (losses + F.cross_entropy(scores.T, positives, reduction="none")) / 2


def _check_embeddings(anchors: Tensor, candidates: Tensor, symmetric: bool) -> tuple[int, int]:
    """Return (B, M) after checking that [B, D] and [M, D] fit together."""
    check_shape("anchors", anchors, ["B", "D"])
    check_shape("candidates", candidates, ["M", anchors.shape[1]])
    n_rows, n_columns = anchors.shape[0], candidates.shape[0]
    if symmetric and n_columns != n_rows:
        raise ValueError(
            f"Expected as many `candidates` as `anchors` with `symmetric`, "
            f"got {n_columns} and {n_rows}."
        )
    check_floating("anchors", anchors)
    check_like("candidates", candidates, "anchors", anchors)
    if not 1 <= n_rows <= n_columns:
        raise ValueError(
            f"Expected at least one of `anchors` [B, D] and as many `candidates`, got {n_rows} "
            f"and {n_columns}."
        )
    return n_rows, n_columns


def _checked_mask(
    anchors: Tensor,
    n_columns: int,
    mask: Tensor,
    symmetric: bool,
    offset: int,
    *,
    validate_args: bool,
) -> Tensor:
    """Return the mask [B, M], already rolled by `offset`: a view."""
    scores = anchors.new_empty(()).expand(len(anchors), n_columns)  # shape, dtype and device only
    allowed = expand_mask(
        scores, mask, symmetric=symmetric, offset=offset, validate_args=validate_args
    )
    if validate_args:
        warn_of_rows("no candidate", ~positives_of(allowed))
    return allowed


def _check_losses(losses: Tensor, anchors: Tensor, candidates: Tensor) -> None:
    """Raise if a loss is not finite, with the reason; cheaper than a look at every embedding."""
    if math.isfinite(losses.detach().sum().item()):
        return
    check_finite("anchors", anchors)
    check_finite("candidates", candidates)
    n_bad = int((~losses.isfinite()).sum())
    if n_bad:
        raise ValueError(
            f"Expected scores that float32 can hold, got {n_bad} of {len(losses)} losses NaN or "
            "infinite. Pass normalize=True or a smaller `scale`."
        )


def _warn_of_lone_anchors(losses: Tensor, n_columns: int, negatives: Negatives) -> None:
    """Warn of anchors without a negative, which cost 0: only where that is so they are sought."""
    has_rule = negatives.mask is not None or negatives.moments is not None
    lone = losses.detach() == 0.0  # [B]
    if not (has_rule or n_columns == 1) or not bool(lone.any()):
        return
    if has_rule:
        lone &= negatives.lone_rows(len(losses), n_columns, BEST_TILE)
    if negatives.mask is not None:
        lone &= positives_of(negatives.mask)  # the others have no candidate, and were named
    warn_of_rows("no negative", lone)


def _check_scale(scale: float | Tensor) -> None:
    """Raise unless `scale` is a positive number or a 0-dim tensor, whose value is not read."""
    if not isinstance(scale, Tensor):
        check_number("scale", scale, above=0.0)
    elif scale.ndim != 0:
        raise ValueError(f"Expected a 0-dim `scale`, got a tensor of shape {tuple(scale.shape)}.")


def _check_offset(offset: int, largest: int) -> None:
    """Raise unless every positive is a candidate."""
    check_count("offset", offset, at_least=0)
    if offset > largest:
        raise ValueError(
            f"Expected `offset` at most {largest} (candidates less anchors), got {offset}."
        )


def _automatic_side(anchors: Tensor, n_columns: int, symmetric: bool) -> int | None:
    """Return rows and columns of the tiles that "auto" takes, None for all scores at once."""
    crossover, side = DEVICE_CROSSOVER, DEVICE_TILE
    if anchors.device.type == "cpu":
        crossover, side = CROSSOVER["symmetric" if symmetric else "one way"], BEST_TILE
    return side if anchors.shape[0] * n_columns >= crossover**2 else None


def _checked_side(tile: object) -> int | None:
    """Return rows and columns of the tiles that the caller asks for, None for no tiles."""
    if tile is None:
        return None
    if isinstance(tile, bool) or not isinstance(tile, Integral):
        raise TypeError(f'Expected `tile` to be an integer, None or "auto", got {tile!r}.')
    check_count("tile", int(tile))
    return int(tile)


def _negatives(
    n_columns: int,
    mask: Tensor | None,
    episodes: Tensor | None,
    times: Tensor | None,
    min_gap: int,
    offset: int,
) -> Negatives:
    """Return which of the candidates, rolled by `offset`, take part."""
    if episodes is None and times is None:
        if min_gap != 1:
            raise ValueError(f"Expected `episodes` and `times` with `min_gap`={min_gap}, got none.")
        return Negatives(mask)
    if episodes is None or times is None:
        missing = "episodes" if episodes is None else "times"
        raise ValueError(f"Expected `episodes` and `times` together, got no `{missing}`.")
    check_shape("episodes", episodes, [n_columns])
    moments, gap = timeline(episodes, times, min_gap)
    return Negatives(mask, moments.roll(-offset), gap)
