"""What every estimator asks of `scores` and `mask`: positives on the diagonal, all allowed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_infonce.checks import check_shape, warn_user
from rl_infonce.nce._precision import at_least_float32

_NAMED_ROWS = 8
MASK_INSTEAD = " Exclude candidates with `mask`, not with infinite scores."


def check_scores(scores: Tensor) -> None:
    """Raise unless `scores` is floating point of shape [..., B, M] with 1 <= B <= M."""
    check_shape("scores", scores, ["...", "B", "M"])
    check_floating("scores", scores)
    if not 1 <= scores.shape[-2] <= scores.shape[-1]:
        raise ValueError(
            f"Expected `scores` [..., B, M] with 1 <= B <= M, got {tuple(scores.shape)}."
        )


def check_floating(name: str, tensor: Tensor) -> None:
    """Raise unless an argument is floating point."""
    if not tensor.is_floating_point():
        raise TypeError(f"Expected `{name}` to be floating point, got {tensor.dtype}.")


def check_like(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raise unless two arguments are floating point, of one dtype and on one device."""
    if not tensor.is_floating_point() or tensor.dtype != other.dtype:
        raise TypeError(
            f"Expected `{name}` in the floating point dtype of `{other_name}` ({other.dtype}), "
            f"got {tensor.dtype}."
        )
    check_device(name, tensor, other_name, other)


def check_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raise unless two arguments are on one device."""
    if tensor.device != other.device:
        raise ValueError(
            f"Expected `{name}` on the device of `{other_name}` ({other.device}), got "
            f"{tensor.device}."
        )


def check_finite(
    name: str, tensor: Tensor, mask: Tensor | None = None, *, way_out: str = ""
) -> None:
    """Raise, with the way out, if an entry is NaN or infinite; waits for the device.

    Entries where a boolean `mask` of the same shape is False do not matter.
    """
    # One sum is several times faster than looking at every entry, and settles the usual case.
    if math.isfinite(tensor.detach().sum().item()):
        return
    bad = ~torch.isfinite(tensor)
    if mask is not None:
        bad = bad & mask
    n_bad = int(bad.sum())
    if n_bad:
        raise ValueError(
            f"Expected `{name}` to be finite, got {n_bad} of {tensor.numel()} entries NaN or "
            f"infinite.{way_out}"
        )


def expand_boolean(name: str, chosen: Tensor, other_name: str, other: Tensor) -> Tensor:
    """Return a view of a boolean argument in the shape of another argument."""
    if chosen.dtype != torch.bool:
        raise TypeError(f"Expected a boolean `{name}`, got {chosen.dtype}.")
    return expand_like(name, chosen, other_name, other)


def expand_like(name: str, tensor: Tensor, other_name: str, other: Tensor) -> Tensor:
    """Return a view of an argument in the shape of another one, on whose device it is."""
    check_device(name, tensor, other_name, other)
    try:
        return tensor.expand(other.shape)
    except RuntimeError:
        raise ValueError(
            f"Expected `{name}` broadcastable to `{other_name}` {tuple(other.shape)}, "
            f"got {tuple(tensor.shape)}."
        ) from None


def expand_mask(
    scores: Tensor,
    mask: Tensor,
    *,
    symmetric: bool = False,
    offset: int = 0,
    validate_args: bool = True,
) -> Tensor:
    """Return `mask` as [..., B, M]; every row allows its positive or nothing at all.

    If `symmetric`, so does every column of [..., B, B]. `offset` is where the caller had the
    positive of row 0, for messages.
    """
    allowed = expand_boolean("mask", mask, "scores", scores)  # [..., B, M]
    if validate_args:
        refuse_candidates_without_positive(allowed, offset=offset)
        if symmetric:
            refuse_candidates_without_positive(allowed.mT, columns=True)
    return allowed


def allowed_scores(
    scores: Tensor,
    mask: Tensor | None,
    *,
    symmetric: bool = False,
    validate_args: bool = True,
    warn: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return checked scores in at least float32, -inf where a candidate takes no part.

    The scores arrive already divided by the temperature: a temperature applied to -inf would
    receive a NaN gradient. A row without any candidate, which `warn` names, gets a constant 0 for
    its positive, so that its loss and gradient are 0. The second tensor [..., B] is True where a
    row has candidates.
    """
    check_scores(scores)
    wide = at_least_float32(scores)
    if mask is None:
        if validate_args:
            check_finite("scores", wide, way_out=MASK_INSTEAD)
        return wide, torch.ones_like(scores[..., 0], dtype=torch.bool)
    allowed = expand_mask(scores, mask, symmetric=symmetric, validate_args=validate_args)
    used = positives_of(allowed)
    if validate_args:
        if warn:
            warn_of_rows("no candidate", ~used)
        check_finite("scores", wide, allowed, way_out=MASK_INSTEAD)
    excluded = wide.new_full(scores.shape[-2:], -math.inf).fill_diagonal_(0.0)
    return torch.where(allowed, wide, excluded), used


def allowed_negatives(
    scores: Tensor, mask: Tensor | None, *, validate_args: bool = True, warn: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Split checked scores into positives and negatives, for losses that treat them apart.

    The positives are [..., B]; the negatives [..., B, M], -inf on the diagonal and where masked;
    the third tensor [..., B] is the number of negatives, as a float. A row without negatives, which
    `warn` names, gets zeros instead of -inf, so that nothing in it is NaN; its loss is the caller's
    to blank.
    """
    filled, used = allowed_scores(scores, mask, validate_args=validate_args, warn=warn)
    diagonal = torch.eye(*scores.shape[-2:], dtype=torch.bool, device=scores.device)
    left_out = diagonal.expand(scores.shape)
    if mask is not None:
        left_out = left_out | ~expand_mask(scores, mask, validate_args=False)
    n_negatives = (~left_out).sum(dim=-1)  # [..., B]
    if validate_args and warn:
        warn_of_rows("no negative", used & (n_negatives == 0))
    negatives = filled.masked_fill(left_out, -math.inf)
    negatives = negatives.masked_fill((n_negatives == 0)[..., None], 0.0)
    return positives_of(filled), negatives, n_negatives.to(filled.dtype)


def positives_of(matrix: Tensor) -> Tensor:
    """Return the entries [..., B] of [..., B, M] that belong to the positives."""
    return torch.diagonal(matrix, dim1=-2, dim2=-1)


def refuse_rows(wrong: Tensor, expected: str, way_out: str = "") -> None:
    """Raise if a row is marked, and name the first few."""
    if bool(wrong.any()):
        raise ValueError(
            f"Expected {expected}, got {int(wrong.sum())} other rows: {row_numbers(wrong)}."
            f"{way_out}"
        )


def row_numbers(where: Tensor) -> str:
    """Return the indices of the first few True entries, for a message."""
    found = where.nonzero().squeeze(-1).tolist()
    more = ", ..." if len(found) > _NAMED_ROWS else ""
    return ", ".join(str(index) for index in found[:_NAMED_ROWS]) + more


def refuse_candidates_without_positive(
    allowed: Tensor, *, columns: bool = False, offset: int = 0
) -> None:
    """Raise if a row of a mask [..., B, M] allows candidates and not its positive.

    With `columns` the mask is the transpose of the caller's, who reads of columns then, and with
    `offset` its columns were rolled from where the caller had them.
    """
    positives = positives_of(allowed)  # [..., B]
    if bool(positives.all()):
        return
    orphaned = allowed.any(dim=-1) & ~positives
    if bool(orphaned.any()):
        one, other = ("column", "row") if columns else ("row", "column")
        place = f"{other} i + {offset}" if offset else f"{other} i"
        way_out = " To leave out pair i, exclude row i and column i." if columns else ""
        raise ValueError(
            f"Expected `mask` to allow the positive ({place} of {one} i) of every {one} that has "
            f"candidates, got {int(orphaned.sum())} of {positives.numel()} {one}s without it: "
            f"{row_numbers(orphaned)}.{way_out}"
        )


def warn_of_lone_positives(mask: Tensor | None, used: Tensor, *filled: Tensor) -> None:
    """Warn of used rows [..., B] whose positive is alone in each of some `allowed_scores`."""
    if mask is None and filled[0].shape[-1] > 1:
        return
    alone = used
    for scores in filled:
        alone = alone & ((~scores.isneginf()).sum(dim=-1) == 1)
    warn_of_rows("no negative", alone)


def warn_of_rows(what: str, where: Tensor, value: str = "loss") -> None:
    """Warn of the rows [..., B] that are marked, and name the first few; waits for the device.

    `value` is what of such a row is 0.
    """
    n_rows = int(where.sum())
    if n_rows:
        warn_user(
            f"{n_rows} of {where.numel()} rows have {what} and so {value} 0: "
            f"{row_numbers(where)}. Leave them out of the mean.",
        )
