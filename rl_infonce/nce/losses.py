"""InfoNCE and its relatives: scores in, one loss per anchor out, in nats.

Shared by all functions here:

- `scores` [..., B, M] are log-scores, M >= B, already divided by the temperature; the positive of
  row i is column i, and leading axes are independent problems: scores [B, 1 + K] of one positive
  and K negatives of each context's own are B problems of one row, `scores[:, None]`. Losses are
  computed in at least float32, also under autocast.
- `mask` is boolean and broadcastable to `scores`; True = this candidate takes part. A row without
  any candidate, or without a negative, has loss 0 and gradient 0; a warning names the row, so that
  it can be left out of means.
- `validate_args=False` skips the checks of values (finite scores, positives allowed by the mask)
  and the warning, which wait for the device.
- `TypeError` if an argument has the wrong type, `ValueError` if a shape does not fit, a number is
  out of range, an entry is not finite or `mask` excludes the positive of a row it uses.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_infonce.checks import check_number, check_shape
from rl_infonce.nce._candidates import (
    allowed_negatives,
    allowed_scores,
    check_device,
    check_finite,
    check_scores,
    expand_boolean,
    positives_of,
    refuse_rows,
    warn_of_lone_positives,
)
from rl_infonce.nce._precision import at_least_float32, autocast_off


def info_nce(scores: Tensor, *, mask: Tensor | None = None, validate_args: bool = True) -> Tensor:
    """Return the InfoNCE loss of each anchor.

    It is the cross entropy of picking the positive among all candidates (van den Oord et al. 2018,
    "Contrastive Predictive Coding", eq. 4). Unlike NT-Xent (SimCLR), anchors are not candidates
    for one another. It identifies log p(x|c) / p(x) up to a constant per anchor, if negatives are
    drawn from p(x).

    Args:
        scores: [..., B, M], M >= B.
        mask: Boolean, broadcastable to `scores`; True = this candidate takes part.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [..., B] losses in nats, >= 0, float32 or float64. A critic that cannot tell n candidates
        apart scores log(n). A row left with its positive alone has loss 0, which is no fit: leave
        it out of the mean.

    Example:
        >>> info_nce(torch.zeros(1, 4)).exp()
        tensor([4.])
    """
    with autocast_off(scores):
        allowed, used = allowed_scores(scores, mask, validate_args=validate_args)
        if validate_args:
            warn_of_lone_positives(mask, used, allowed)
        return nats_to_pick_positive(allowed)


def symmetric_info_nce(
    scores: Tensor, *, mask: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Return the mean of both directions: anchors pick candidates, candidates pick anchors.

    The CLIP form (Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
    Supervision", fig. 3): the average of two softmax losses, over the rows and over the columns of
    one score matrix. Entry i is the mean of row i's and column i's loss; CLIP reduces them further.
    It identifies log p(x, c) / (p(x) p(c)) up to one constant.

    Args:
        scores: [..., B, B]; the positives are on the diagonal.
        mask: Boolean, broadcastable to `scores`; it excludes pairs in both directions. To leave
            out pair i, exclude its row and its column.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [..., B] losses in nats, >= 0, float32 or float64.
    """
    check_shape("scores", scores, ["...", "B", "M"])
    if scores.shape[-2] != scores.shape[-1]:
        raise ValueError(f"Expected square `scores` [..., B, B], got {tuple(scores.shape)}.")
    with autocast_off(scores):
        allowed, used = allowed_scores(
            scores, mask, symmetric=True, validate_args=validate_args
        )  # [..., B, B]
        if validate_args:
            warn_of_lone_positives(mask, used, allowed, allowed.mT)
        return (nats_to_pick_positive(allowed) + nats_to_pick_positive(allowed.mT)) / 2


def decoupled_info_nce(
    scores: Tensor, *, mask: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Return InfoNCE without the positive in the denominator.

    -s_ii + log sum_{j != i} exp s_ij (Yeh et al. 2022, "Decoupled Contrastive Learning", L_DC),
    which keeps the gradient of easy anchors from fading in small batches. It identifies what
    `info_nce` does in the limit of many negatives; with few, scores run to their limits, so that no
    ratio can be read from them. It can be negative: no mutual information can be read from it
    either. Unbounded scores make it fall forever, by growing: use
    bounded ones, such as a cosine over a temperature T (`CosineCritic`), with which n negatives
    leave it at log n - 2 / T or above.
    exp(info_nce) = 1 + exp(decoupled_info_nce). The authors' negatives are both views of other
    images; here they are the row's other candidates.

    Args:
        scores: [..., B, M], M >= 2.
        mask: Boolean, broadcastable to `scores`.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [..., B] losses in nats, any sign; 0 for a row without negatives, which a warning names.
    """
    with autocast_off(scores):
        positives, negatives, n_negatives = allowed_negatives(
            scores, mask, validate_args=validate_args
        )
        # subtracted before the sum, which would lose small differences of large scores
        losses = torch.logsumexp(negatives - positives[..., None], dim=-1)
        return torch.where(n_negatives > 0, losses, 0.0)


def soft_info_nce(
    scores: Tensor, targets: Tensor, *, mask: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Return the cross entropy with a distribution over candidates instead of one positive.

    -sum_j targets_ij log softmax_j(s_i), as in knowledge distillation (Hinton et al. 2015, eq. 1
    with T = 1), for positives that are uncertain. One-hot targets give `info_nce`. Targets receive
    no gradient: self-made ones would collapse.

    Args:
        scores: [..., B, M].
        targets: [..., B, M] >= 0, of the dtype of `scores` or float32; rows sum to 1, up to
            0.001 or the resolution of their dtype.
        mask: Boolean, broadcastable to `scores`; masked candidates must have target 0.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [..., B] losses in nats, at least the entropy of the targets.
    """
    check_scores(scores)
    check_shape("targets", targets, tuple(scores.shape))
    if targets.dtype not in (scores.dtype, torch.float32):
        raise TypeError(
            f"Expected `targets` in the dtype of `scores` ({scores.dtype}) or float32, got "
            f"{targets.dtype}."
        )
    check_device("targets", targets, "scores", scores)
    with autocast_off(scores):
        allowed, used = allowed_scores(scores, mask, validate_args=validate_args)
        weights = at_least_float32(targets.detach())
        if validate_args:
            tolerance = max(1e-3, torch.finfo(targets.dtype).eps)
            _check_distributions(weights, allowed.isinf(), used, tolerance)
            warn_of_lone_positives(mask, used, allowed)
        return _cross_entropy(allowed, weights.masked_fill(~used[..., None], 0.0))


def multi_positive_info_nce(
    scores: Tensor, positives: Tensor, *, mask: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Return InfoNCE averaged over several positives of each anchor.

    -1/|P(i)| sum_{p in P(i)} log softmax_p(s_i), all candidates in the denominator (Khosla et
    al. 2020, "Supervised Contrastive Learning", eq. 2, the mean outside the logarithm). With one
    positive per row this is `info_nce`.

    Args:
        scores: [..., B, M].
        positives: Boolean, broadcastable to `scores`; also True on the diagonal.
        mask: Boolean, broadcastable to `scores`; masked candidates must not be positives.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [..., B] losses in nats, >= log of the number of positives.
    """
    check_scores(scores)
    chosen = expand_boolean("positives", positives, "scores", scores)
    if validate_args:
        expected = "`positives` to hold the positive (column i of row i) of every row"
        refuse_rows(~positives_of(chosen), expected)
    with autocast_off(scores):
        allowed, used = allowed_scores(scores, mask, validate_args=validate_args)
        if validate_args:
            masked = (chosen & allowed.isneginf() & used[..., None]).any(dim=-1)  # [..., B]
            expected = "`positives` to be False where `mask` is"
            refuse_rows(masked, expected, " Pass `positives & mask` instead.")
            warn_of_lone_positives(mask, used, allowed)
        weights = (chosen & ~allowed.isneginf()).to(allowed.dtype)  # [..., B, M]
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return _cross_entropy(allowed, weights)


def debiased_info_nce(
    scores: Tensor,
    *,
    class_prior: float,
    min_score: float = -math.inf,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return InfoNCE corrected for negatives that are in truth positives.

    A share `class_prior` of the negatives is expected to be of the anchor's own class and taken
    off their mean exponential (Chuang et al. 2020, "Debiased Contrastive Learning", eq. 8 with
    M = 1): with n negatives, g = max((mean exp s^- - class_prior exp s^+) / (1 - class_prior),
    exp min_score) and the loss is -log exp s^+ / (exp s^+ + n g). At low temperatures an easy row
    reaches that floor, and with it loss and gradient 0 if there is no `min_score`: the paper uses
    T = 0.5. A prior of 0 gives `info_nce`. The authors' negatives are both views of other images;
    here they are the row's other candidates.

    The anchor's one positive stands for the mean of its class. Where it is nearer to the anchor
    than the class is, as another view of the same image is, too much is taken off. With any M
    but infinity the scores are near the log ratio to true negatives only while `class_prior`
    times that ratio is small.

    Args:
        scores: [..., B, M].
        class_prior: Expected share of true positives among the negatives, tau^+, in [0, 1).
        min_score: Smallest score the critic can give; -1/T for a cosine at temperature T.
        mask: Boolean, broadcastable to `scores`.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [..., B] losses in nats, >= 0; 0 for a row without negatives, which a warning names.
    """
    return hard_negative_info_nce(
        scores,
        concentration=0.0,
        class_prior=class_prior,
        min_score=min_score,
        mask=mask,
        validate_args=validate_args,
    )


def hard_negative_info_nce(
    scores: Tensor,
    *,
    concentration: float,
    class_prior: float = 0.0,
    min_score: float = -math.inf,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return InfoNCE whose negatives weigh more the better they score.

    Negative j of a row has weight exp(concentration s_j), normalised to mean 1 over the row
    (Robinson et al. 2021, "Contrastive Learning with Hard Negative Samples", sec. 3),
    then corrected as in `debiased_info_nce`. As in the authors' code the weights receive a
    gradient, and beta multiplies the score after the temperature. Concentration 0 gives
    `debiased_info_nce`, with prior 0 `info_nce`.

    Args:
        scores: [..., B, M].
        concentration: How much more hard negatives weigh, beta >= 0.
        class_prior: Expected share of true positives among the negatives, tau^+, in [0, 1).
        min_score: Smallest score the critic can give; -1/T for a cosine at temperature T.
        mask: Boolean, broadcastable to `scores`.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [..., B] losses in nats, >= 0; 0 for a row without negatives, which a warning names.
    """
    check_number("concentration", concentration, at_least=0.0)
    check_number("class_prior", class_prior, at_least=0.0, below=1.0)
    if min_score != -math.inf:
        check_number("min_score", min_score)
    with autocast_off(scores):
        positives, negatives, n_negatives = allowed_negatives(
            scores, mask, validate_args=validate_args
        )
        gains = negatives - positives[..., None]  # [..., B, M]
        log_mean = _log_weighted_mean(gains, n_negatives, concentration)
        log_mean = _subtract_share(log_mean, class_prior)
        log_mean = torch.maximum(log_mean, min_score - positives)
        # softplus, but exact beyond its threshold of 20
        losses = -F.logsigmoid(-log_mean - n_negatives.clamp_min(1).log())
        return torch.where(n_negatives > 0, losses, 0.0)


def nats_to_pick_positive(scores: Tensor) -> Tensor:
    """Return [..., B] cross entropies of column i in row i of [..., B, M]."""
    rows = scores.shape[:-1]  # (..., B)
    positives = torch.arange(rows[-1], device=scores.device).expand(rows)  # [..., B]
    losses = F.cross_entropy(
        scores.reshape(-1, scores.shape[-1]), positives.reshape(-1), reduction="none"
    )
    return losses.reshape(rows)  # [..., B]


def _cross_entropy(scores: Tensor, weights: Tensor) -> Tensor:
    """Return [..., B] cross entropies of distributions `weights` with softmaxes of `scores`."""
    log_softmax = torch.log_softmax(scores, dim=-1)
    # 0 * -inf is NaN, so that masked candidates must leave the product, not enter it as 0.
    return -(torch.where(weights > 0, log_softmax, 0.0) * weights).sum(dim=-1)


def _log_weighted_mean(scores: Tensor, n_negatives: Tensor, concentration: float) -> Tensor:
    """Return log of the mean over [..., M] of w_j exp(s_j), w_j proportional to exp(beta s_j)."""
    if concentration == 0.0:
        return torch.logsumexp(scores, dim=-1) - n_negatives.clamp_min(1).log()
    # Not as a difference of two logs, both of the size of beta times the scores.
    tilted = concentration * scores
    log_weights = tilted - torch.logsumexp(tilted, dim=-1, keepdim=True)
    return torch.logsumexp(scores + log_weights, dim=-1)


def _subtract_share(log_mean: Tensor, share: float) -> Tensor:
    """Return log((exp log_mean - share) / (1 - share)), -inf where that is <= 0."""
    if share == 0.0:
        return log_mean
    gap = math.log(share) - log_mean  # [..., B]
    nothing_left = gap >= 0.0
    # expm1 at a harmless place where nothing is left: its gradient there would be infinite
    difference = log_mean + torch.log(-torch.expm1(gap.masked_fill(nothing_left, -1.0)))
    return difference.masked_fill(nothing_left, -math.inf) - math.log1p(-share)


def _check_distributions(weights: Tensor, masked: Tensor, used: Tensor, tolerance: float) -> None:
    check_finite("targets", weights)
    sums = weights.sum(dim=-1)  # [..., B]
    wrong = ((sums - 1.0).abs() > tolerance) | (weights < 0).any(dim=-1)
    refuse_rows(used & wrong, "`targets` >= 0 with rows that sum to 1")
    lost = (masked & (weights > 0)).any(dim=-1)
    refuse_rows(used & lost, "`targets` to be 0 where `mask` is False")
