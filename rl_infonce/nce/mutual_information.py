"""Mutual information from scores, in nats: lower bounds, estimates, and the score of one pair.

`scores` [..., B, M] hold the positive of row i in column i; every other entry that `mask` allows
is a pair of independent draws. `info_nce_bound` needs scores up to a constant per row, which is
what InfoNCE trains. The others need them as log p(x, c) / (p(x) p(c)), and `dv_estimate` alone
allows one constant to be added; a critic that InfoNCE has trained does not fit them. `mask`,
`validate_args` and errors are those of `rl_infonce.nce.losses`, but bounds and estimates leave rows
without any candidate out of their means and do not warn of them; the estimates over pairs also
raise `ValueError` where there is no negative.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_infonce.checks import check_number, check_shape
from rl_infonce.nce._candidates import (
    allowed_negatives,
    allowed_scores,
    check_finite,
    check_like,
    check_scores,
    expand_mask,
    positives_of,
    warn_of_rows,
)
from rl_infonce.nce._precision import at_least_float32, autocast_off
from rl_infonce.nce.losses import nats_to_pick_positive


def info_nce_bound(
    scores: Tensor, *, mask: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Return the InfoNCE lower bound on the mutual information of anchors and positives.

    The mean over anchors of log N_i - loss_i, N_i being the candidates that take part in row i
    (van den Oord et al. 2018, "Contrastive Predictive Coding", sec. 2.3; I_NCE of Poole et
    al. 2019, "On Variational Bounds of Mutual Information"). For any critic it is at most the mean
    of `log_candidates` over the rows that have candidates: a value close to that ceiling
    (`is_saturated`) says that the batch is too small to show more, not how much information there
    is.

    It is a bound on average over batches, when the other candidates are independent draws and the
    critic was not trained on these pairs: one that knows them by heart reaches the ceiling whatever
    the information. Evaluate held-out pairs. `mask` keeps the formula honest about how many
    candidates a row has, but what takes part must not depend on the anchor: a mask of similar
    candidates removes the hard negatives and voids the bound, and so does one of neighbours in time
    that look alike. Rows without any candidate are left out of the mean, 0 if none has one.

    Args:
        scores: [..., B, M] log-scores, M >= B, already divided by the temperature.
        mask: Boolean, broadcastable to `scores`.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [...] bounds in nats, one per leading index, float32 or float64. Negative when the critic
        is worse than chance.

    Example:
        >>> info_nce_bound(100 * torch.eye(8)).exp().round()
        tensor(8.)
    """
    with autocast_off(scores):
        allowed, _ = allowed_scores(scores, mask, validate_args=validate_args, warn=False)
        losses = nats_to_pick_positive(allowed)  # [..., B]
    gained = log_candidates(scores, mask=mask, validate_args=False) - losses
    return _mean_over_used_rows(gained, scores, mask)


def log_candidates(
    scores: Tensor, *, mask: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Return log N_i, the loss of chance and the ceiling of the InfoNCE bound in row i.

    Args:
        scores: [..., B, M]; only the shape, dtype and device matter.
        mask: Boolean, broadcastable to `scores`.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [..., B] in nats, >= 0, float32 or float64, without gradient; 0 for a row without any,
        which a warning names.
    """
    check_scores(scores)
    like = at_least_float32(scores[..., 0].detach())  # [..., B]
    if mask is None:
        return torch.full_like(like, math.log(scores.shape[-1]))
    allowed = expand_mask(scores, mask, validate_args=validate_args)
    if validate_args:
        warn_of_rows("no candidate", ~positives_of(allowed), "ceiling")
    return allowed.sum(dim=-1).clamp_min(1).to(like.dtype).log()


def is_saturated(bound: Tensor, ceiling: Tensor, *, margin: float = 0.2) -> Tensor:
    """Return whether an InfoNCE bound is too close to its ceiling to say how large it could be.

    One that is not may still be far too low: with 64 candidates and the best critic, 6 nats show as
    3.7, which is 0.4 below the ceiling.

    Args:
        bound: [...] from `info_nce_bound`.
        ceiling: Broadcastable to `bound`; the mean of `log_candidates` over the rows that have
            candidates, since `info_nce_bound` leaves out the others.
        margin: Nats below the ceiling, >= 0.

    Returns:
        [...] bool.
    """
    check_number("margin", margin, at_least=0.0)
    return bound > ceiling - margin


def nwj_bound(scores: Tensor, *, mask: Tensor | None = None, validate_args: bool = True) -> Tensor:
    """Return the bound of Nguyen, Wainwright and Jordan, also known as f-GAN KL and MINE-f.

    1 + E_joint[s] - E_product[exp s] (Nguyen et al. 2010; Poole et al. 2019, eq. 5 with f = s + 1).
    A lower bound without a ceiling, tight at s = log p(x, c) / (p(x) p(c)), but its variance grows
    exponentially with the information: at least (e^I - 1) / n for n independent pairs, from the
    second term alone (Song & Ermon 2020, theorem 2). It bounds on average: one batch can exceed the
    information. Scores above 88 (709 in float64) can make it -inf and its gradient infinite or NaN,
    as its exponential stands outside any logarithm: clamp scores, or train with `local_nce` or
    `dv_estimate`.

    Args:
        scores: [..., B, M].
        mask: Boolean, broadcastable to `scores`.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [...] bounds in nats.
    """
    with autocast_off(scores):
        joint, log_product = _expectations(scores, mask, None, validate_args=validate_args)
        return 1.0 + joint - log_product.exp()


def dv_estimate(
    scores: Tensor,
    *,
    log_moving_mean: Tensor | None = None,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return the Donsker-Varadhan estimate, as maximised by MINE.

    E_joint[s] - log E_product[exp s] (Donsker & Varadhan 1983; Belghazi et al. 2018, "Mutual
    Information Neural Estimation", eq. 5). A bound for exact expectations only: in finite batches
    the logarithm of a mean is biased and the value too high on average. Its gradient is biased as
    well; `log_moving_mean` replaces the batch's mean in it (sec. 3.2) and leaves the value alone.

    Args:
        scores: [..., B, M].
        log_moving_mean: [...] log of a moving average of E_product[exp s] over past batches, from
            `moving_log_mean_exp`.
        mask: Boolean, broadcastable to `scores`.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [...] estimates in nats.
    """
    with autocast_off(scores):
        joint, log_product = _expectations(scores, mask, None, validate_args=validate_args)
        if log_moving_mean is None:
            return joint - log_product
        _check_log_mean("log_moving_mean", log_moving_mean, log_product, validate_args)
        # the value of log_product with the gradient of its exponential over the moving mean
        slope = (log_product - log_moving_mean).detach().exp()
        slope = slope.clamp_max(torch.finfo(slope.dtype).max)  # infinity times 0 would be NaN
        return joint - (log_product.detach() + slope * (log_product - log_product.detach()))


def moving_log_mean_exp(
    scores: Tensor,
    previous: Tensor | None,
    *,
    decay: float = 0.99,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return the log of the exponentially moving average of E_product[exp s], for `dv_estimate`.

    Args:
        scores: [..., B, M].
        previous: [...] the result of the last call; None at the first batch.
        decay: Weight of `previous`, in [0, 1].
        mask: Boolean, broadcastable to `scores`.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [...] without gradient.
    """
    check_number("decay", decay, at_least=0.0, at_most=1.0)
    with autocast_off(scores):
        _, now = _expectations(scores.detach(), mask, None, validate_args=validate_args)
    if previous is None or decay == 0.0:
        return now
    _check_log_mean("previous", previous, now, validate_args)
    if decay == 1.0:
        return previous.detach()
    return torch.logaddexp(previous.detach() + math.log(decay), now + math.log1p(-decay))


def _check_log_mean(name: str, log_mean: Tensor, like: Tensor, validate_args: bool) -> None:
    """Raise unless there is one finite log mean, or one for each matrix of scores."""
    if not isinstance(log_mean, Tensor):
        raise TypeError(f"Expected `{name}` to be a tensor, got {type(log_mean).__name__}.")
    if log_mean.ndim and log_mean.shape != like.shape:
        raise ValueError(
            f"Expected `{name}` to be 0-dim or of shape {tuple(like.shape)}, one of each matrix of "
            f"scores, got {tuple(log_mean.shape)}."
        )
    if validate_args:
        check_finite(name, log_mean)


def smile_estimate(
    scores: Tensor, *, clip: float = 5.0, mask: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Return the Donsker-Varadhan estimate with clipped exponentials.

    E_joint[s] - log E_product[clip(exp s, e^-clip, e^clip)] (Song & Ermon 2020, "Understanding the
    Limitations of Variational Mutual Information Estimators", eq. 17). Clipping bounds the variance
    and adds bias: this is an estimate, not a bound, and can exceed the information by nats.
    `clip=inf` gives `dv_estimate`. It evaluates a critic and trains none, as it has no maximum:
    beyond the clip larger scores cost nothing. The authors train theirs with the Jensen-Shannon
    bound, -softplus(-s) on average over pairs minus softplus(s) over independent ones.

    Args:
        scores: [..., B, M].
        clip: Largest absolute score of an independent pair, > 0.
        mask: Boolean, broadcastable to `scores`.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [...] estimates in nats.
    """
    if clip != math.inf:
        check_number("clip", clip, above=0.0)
    with autocast_off(scores):
        joint, log_product = _expectations(scores, mask, clip, validate_args=validate_args)
        return joint - log_product


def density_ratio_score(
    scores: Tensor, reference_scores: Tensor, *, validate_args: bool = True
) -> Tensor:
    """Return an estimate of log p(x|c) / p(x) of one pair each, from a critic trained by InfoNCE.

    s(c, x) - log mean_j exp s(c, x_j) over reference draws x_j from p(x), which removes the
    constant per anchor that InfoNCE leaves open (van den Oord et al. 2018, eq. 5). Low scores mark
    pairs that do not belong together. Unlike a likelihood, the ratio is not fooled by what is
    likely everywhere (Ren et al. 2019, "Likelihood Ratios for Out-of-Distribution Detection"). The
    estimate is too high on average, by about half the squared relative error of the mean over
    references, which differs between contexts: take hundreds of references.

    Args:
        scores: [B] of the pairs in question.
        reference_scores: [B, M] of the same contexts with M draws from the marginal.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [B] in nats, at most log M above the score's lead over the best reference.
    """
    check_shape("scores", scores, ("B",))
    check_shape("reference_scores", reference_scores, (len(scores), "M"))
    check_like("reference_scores", reference_scores, "scores", scores)
    n_references = reference_scores.shape[1]
    if n_references == 0:
        raise ValueError("Expected `reference_scores` [B, M] with M >= 1, got M = 0.")
    if validate_args:
        check_finite("scores", scores)
        check_finite("reference_scores", reference_scores)
    with autocast_off(scores):
        references = torch.logsumexp(at_least_float32(reference_scores), dim=-1)
        return at_least_float32(scores) - references + math.log(n_references)


def _expectations(
    scores: Tensor, mask: Tensor | None, clip: float | None, *, validate_args: bool
) -> tuple[Tensor, Tensor]:
    """Return E_joint[s] and log E_product[exp s], each [...]."""
    positives, negatives, n_negatives = allowed_negatives(
        scores, mask, validate_args=validate_args, warn=False
    )
    n_pairs = n_negatives.sum(dim=-1)  # [...]
    if validate_args and bool((n_pairs == 0).any()):
        raise ValueError(
            f"Expected at least one negative in `scores` {tuple(scores.shape)}, got none: pass two "
            "anchors or more, or mask less."
        )
    negatives = negatives.masked_fill((n_negatives == 0)[..., None], -math.inf)
    if clip is not None:
        negatives = torch.where(negatives.isneginf(), negatives, negatives.clamp(-clip, clip))
    log_product = torch.logsumexp(negatives.flatten(-2), dim=-1) - n_pairs.log()
    return _mean_over_used_rows(positives, scores, mask), log_product


def _mean_over_used_rows(values: Tensor, scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean [...] of values [..., B], which are 0 in rows without any candidate."""
    if mask is None:
        return values.mean(dim=-1)
    n_used = positives_of(mask.expand(scores.shape)).sum(dim=-1)  # [...]
    return values.sum(dim=-1) / n_used.clamp_min(1)
