"""What the estimators with noise samples ask of their arguments."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rl_infonce.checks import check_shape
from rl_infonce.nce._candidates import (
    MASK_INSTEAD,
    check_finite,
    check_floating,
    check_like,
    expand_boolean,
    expand_like,
    warn_of_rows,
)
from rl_infonce.nce._precision import at_least_float32

_ZERO_Q = {
    "positive_log_q": ": the noise must cover the data. Smooth q, or use another noise "
    "distribution.",
    "noise_log_q": ", which q cannot have drawn. Pass log q of the distribution that the noise was "
    "drawn from, or exclude padding with `mask`.",
}


class Samples(NamedTuple):
    """Checked scores and log q of data and noise, in at least float32.

    Data are [B, P] and noise is [B, K], 0 where masked; log q is 0 if the estimator needs none.
    `used` [B, K] is None if every noise sample takes part; `n_noise` [B] counts them, as a float.
    """

    positives: Tensor
    noise: Tensor
    positive_log_q: Tensor
    noise_log_q: Tensor
    used: Tensor | None
    n_noise: Tensor

    @property
    def log_k(self) -> Tensor:
        """[B] log of the number of noise samples."""
        return self.n_noise.clamp_min(1).log()


def checked_samples(
    positive_scores: Tensor,
    noise_scores: Tensor,
    positive_log_q: Tensor | None,
    noise_log_q: Tensor | None,
    mask: Tensor | None,
    *,
    validate_args: bool,
) -> Samples:
    """Check everything an estimator was given, and bring it into one shape and dtype."""
    _check_scores(positive_scores, noise_scores)
    used = None if mask is None else expand_boolean("mask", mask, "noise_scores", noise_scores)
    if validate_args:
        check_finite("positive_scores", positive_scores)
        check_finite("noise_scores", noise_scores, used, way_out=MASK_INSTEAD)
    like = at_least_float32(noise_scores)
    positives = at_least_float32(positive_scores).reshape(len(like), -1)
    none = torch.zeros((), dtype=like.dtype, device=like.device)
    of_positives, of_noise = none.expand(positive_scores.shape), none.expand(noise_scores.shape)
    if positive_log_q is not None:
        _refuse_rows_or_columns(positive_log_q, positive_scores)
        given = "positive_log_q", positive_log_q, "positive_scores", positive_scores
        of_positives = _log_q(*given, None, validate_args=validate_args)
    if noise_log_q is not None:
        given = "noise_log_q", noise_log_q, "noise_scores", noise_scores
        of_noise = _log_q(*given, used, validate_args=validate_args)
    return Samples(
        positives=positives,
        noise=_filled(like, used),
        positive_log_q=of_positives.to(like.dtype).reshape(len(like), -1),
        noise_log_q=_filled(of_noise.to(like.dtype), used),
        used=used,
        n_noise=_n_noise(like, used, validate_args=validate_args),
    )


def _filled(values: Tensor, used: Tensor | None) -> Tensor:
    """Return values with 0 at samples that take no part, whose gradient could be NaN."""
    return values if used is None else values.masked_fill(~used, 0.0)


def without_masked(tensor: Tensor, samples: Samples) -> Tensor:
    """Return [B, K] with -inf at samples that take no part."""
    return tensor if samples.used is None else tensor.masked_fill(~samples.used, -math.inf)


def blank(losses: Tensor, samples: Samples) -> Tensor:
    """Return [B] with 0 in rows without noise."""
    return losses if samples.used is None else torch.where(samples.n_noise > 0, losses, 0.0)


def _check_scores(positives: Tensor, noise: Tensor) -> None:
    check_shape("noise_scores", noise, ("B", "K"))
    n_rows = len(noise)
    check_shape("positive_scores", positives, (n_rows, "P") if positives.ndim == 2 else (n_rows,))
    check_floating("noise_scores", noise)
    check_like("positive_scores", positives, "noise_scores", noise)
    if noise.numel() == 0 or positives.numel() == 0:
        raise ValueError(
            "Expected at least one row, one positive and one noise sample, got `positive_scores` "
            f"{tuple(positives.shape)} and `noise_scores` {tuple(noise.shape)}."
        )


def _refuse_rows_or_columns(log_q: Tensor, scores: Tensor) -> None:
    if scores.ndim == 2 and log_q.ndim == 1 and len(log_q) > 1:
        shapes = dict.fromkeys([f"[{scores.shape[0]}, 1]", str(list(scores.shape))])
        raise ValueError(
            f"Expected `positive_log_q` as {' or '.join(shapes)} beside "
            f"`positive_scores` {list(scores.shape)}, got [{len(log_q)}], of rows or of columns."
        )


def _log_q(
    name: str,
    log_q: Tensor,
    scores_name: str,
    scores: Tensor,
    used: Tensor | None,
    *,
    validate_args: bool,
) -> Tensor:
    check_floating(name, log_q)
    expanded = expand_like(name, log_q, scores_name, scores)
    if validate_args:
        uncovered = expanded.isneginf() if used is None else expanded.isneginf() & used
        if bool(uncovered.any()):
            raise ValueError(
                f"Expected `{name}` above -inf, got {int(uncovered.sum())} samples with q = 0"
                f"{_ZERO_Q[name]}"
            )
        check_finite(name, expanded, used)
    return expanded


def _n_noise(like: Tensor, used: Tensor | None, *, validate_args: bool) -> Tensor:
    if used is None:
        return like.new_full((len(like),), like.shape[1])
    n_noise = used.sum(dim=-1)
    if validate_args:
        warn_of_rows("no noise sample", n_noise == 0)
    return n_noise.to(like.dtype)
