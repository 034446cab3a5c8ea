"""Estimators of a conditional distribution p(x|c) from noise samples with a known distribution q.

Shared by all functions here:

- `positive_scores` [B] or [B, P] are scores s(c, x) of P data samples x per context c (losses are
  averaged over them), `noise_scores` [B, K] those of K samples from q. Both in one dtype; computed
  in at least float32, also under autocast.
- `positive_log_q` and `noise_log_q` are log q at those samples, broadcastable to the scores: [K] is
  that of noise which all rows share, and one value per row is [B, 1].
- `mask` is boolean and broadcastable to `noise_scores`; True = this sample takes part, and a row
  counts as many noise samples as it has left. Meant for padding: noise that happens to hit the
  positive stays in, because the estimators expect samples of q as they come. A row without any
  noise has loss 0 and gradient 0; a warning names it, so that it can be left out of means.
- `validate_args=False` skips the checks of values, which wait for the device.
- `TypeError` if an argument has the wrong type, `ValueError` if a shape does not fit, there is no
  noise, or a value that takes part is not finite: log q = -inf at a positive says that the noise
  does not cover the data, and then no estimator here works.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_infonce.checks import check_number, check_shape
from rl_infonce.nce._candidates import (
    MASK_INSTEAD,
    check_finite,
    check_floating,
    expand_boolean,
    refuse_rows,
)
from rl_infonce.nce._precision import at_least_float32, autocast_off
from rl_infonce.nce._samples import (
    Samples,
    blank,
    checked_samples,
    without_masked,
)


def exact_nll(
    scores: Tensor,
    targets: Tensor,
    *,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return the negative log-likelihood under a softmax over the whole support.

    log sum_v exp s_v - s_target: what every other estimator here approximates. Identifies
    log p(x|c) up to a constant per context, which the softmax removes. Costs O(V) per context; use
    it whenever that is affordable.

    Args:
        scores: [B, V] of every outcome.
        targets: [B] int64, the outcomes that happened, in [0, V).
        mask: Boolean, broadcastable to `scores`; True = this outcome is possible, as a legal action
            is. Those in `targets` must be.
        validate_args: Whether to check values as well as shapes.

    Returns:
        [B] losses in nats, >= 0, float32 or float64.

    Example:
        >>> exact_nll(torch.zeros(1, 5), torch.tensor([3])).exp()
        tensor([5.])
    """
    check_shape("scores", scores, ("B", "V"))
    check_shape("targets", targets, (len(scores),))
    check_floating("scores", scores)
    if targets.dtype != torch.int64:
        raise TypeError(f"Expected `targets` to be int64, got {targets.dtype}.")
    allowed = None if mask is None else expand_boolean("mask", mask, "scores", scores)  # [B, V]
    if validate_args:
        check_finite("scores", scores, allowed, way_out=MASK_INSTEAD)
        n_outcomes = scores.shape[1]
        refuse_rows((targets < 0) | (targets >= n_outcomes), f"`targets` in [0, {n_outcomes})")
        if allowed is not None:
            happened = allowed.gather(1, targets[:, None])[:, 0]  # [B]
            refuse_rows(~happened, "`mask` to allow the outcome in `targets`")
    with autocast_off(scores):
        wide = at_least_float32(scores)
        possible = wide if allowed is None else wide.masked_fill(~allowed, -math.inf)
        return F.cross_entropy(possible, targets, reduction="none")


def partition_nll(
    positive_scores: Tensor,
    noise_scores: Tensor,
    noise_log_q: Tensor,
    *,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return the negative log-likelihood with an importance-sampled partition function.

    Z(c) is estimated without bias by the mean of exp(s_k) / q_k over the noise (Bengio & Senecal
    2003, "Quick Training of Probabilistic Neural Nets by Importance Sampling"), if q is above 0
    everywhere; its logarithm is biased down by about (1 / n - 1 / K) / 2 with n the
    `effective_sample_size`, by nothing where q is proportional to exp s. Identifies log p(x|c) up
    to a constant per context as K grows. Unlike in `ranking_nce` the positive is not among the K
    samples, so that the loss has no floor: watch the effective sample size, and prefer
    `ranking_nce` if it is low.

    Args:
        positive_scores: [B] or [B, P].
        noise_scores: [B, K].
        noise_log_q: Broadcastable to [B, K].
        mask: Boolean, broadcastable to [B, K].
        validate_args: Whether to check values as well as shapes.

    Returns:
        [B] losses in nats, any sign, float32 or float64.
    """
    samples = checked_samples(
        positive_scores, noise_scores, None, noise_log_q, mask, validate_args=validate_args
    )
    with autocast_off(noise_scores):
        positives, noise = _from_best_noise(samples)
        log_weights = without_masked(noise - samples.noise_log_q, samples)  # [B, K]
        log_partition = torch.logsumexp(log_weights, dim=-1) - samples.log_k
        return blank(log_partition - positives.mean(dim=-1), samples)


def effective_sample_size(
    noise_scores: Tensor,
    noise_log_q: Tensor,
    *,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return how many of the noise samples `partition_nll` effectively uses.

    (sum w)^2 / sum w^2 with w = exp(s) / q (Kong 1992): K if q is proportional to exp s, 1 if one
    sample carries everything.

    Args:
        noise_scores: [B, K].
        noise_log_q: Broadcastable to [B, K].
        mask: Boolean, broadcastable to [B, K].
        validate_args: Whether to check values as well as shapes.

    Returns:
        [B] sizes in [1, K] without gradient; 0 for a row without noise.
    """
    check_shape("noise_scores", noise_scores, ("B", "K"))
    no_positives = torch.zeros_like(noise_scores[:, :1])
    samples = checked_samples(
        no_positives, noise_scores, None, noise_log_q, mask, validate_args=validate_args
    )
    with torch.no_grad(), autocast_off(noise_scores):
        _, noise = _from_best_noise(samples)
        shares = without_masked(noise - samples.noise_log_q, samples).softmax(dim=-1)  # [B, K]
        sizes = shares.square().sum(dim=-1).reciprocal()
        return blank(sizes.clamp_min(1).minimum(samples.n_noise), samples)


def local_nce(
    positive_scores: Tensor,
    noise_scores: Tensor,
    positive_log_q: Tensor,
    noise_log_q: Tensor,
    *,
    log_z: float | Tensor = 0.0,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return the loss of telling each data sample from K noise samples, one by one.

    Logistic regression on a(x) = s(c, x) - log_z - log q(x) - log K: softplus(-a) for data plus
    the sum of softplus(a) over noise (Gutmann & Hyvarinen 2012, "Noise-Contrastive Estimation of
    Unnormalized Statistical Models", eq. 8; Mnih & Teh 2012, eq. 7). Identifies
    log p(x|c) = s - log_z itself: with `log_z` 0 the scores become self-normalised, if the model
    can represent that. Where Z(c) differs between contexts and the model cannot absorb it, one
    constant is inconsistent (Ma & Collins 2018): learn one per context or use `ranking_nce`.

    Several positives are averaged; TensorFlow's `nce_loss` gives each the label 1 / num_true.

    Args:
        positive_scores: [B] or [B, P].
        noise_scores: [B, K].
        positive_log_q: Broadcastable to `positive_scores`.
        noise_log_q: Broadcastable to [B, K].
        log_z: 0, a learned 0-dim tensor, or [B] with one constant per context.
        mask: Boolean, broadcastable to [B, K].
        validate_args: Whether to check values as well as shapes.

    Returns:
        [B] losses in nats, >= 0, float32 or float64.
    """
    samples = checked_samples(
        positive_scores,
        noise_scores,
        positive_log_q,
        noise_log_q,
        mask,
        validate_args=validate_args,
    )
    with autocast_off(noise_scores):
        offset = samples.log_k[:, None] + _check_log_z(
            log_z, len(noise_scores), validate_args=validate_args
        )  # [B, 1]
        return _logistic(
            samples.positives - samples.positive_log_q - offset,
            samples.noise - samples.noise_log_q - offset,
            samples,
        )


def ranking_nce(
    positive_scores: Tensor,
    noise_scores: Tensor,
    positive_log_q: Tensor,
    noise_log_q: Tensor,
    *,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return the loss of picking the data sample among itself and K noise samples.

    Softmax over s - log q (global NCE: Jozefowicz et al. 2016, "Exploring the Limits of Language
    Modeling", sec. 3.1; Ma & Collins 2018, "Noise Contrastive Estimation and Negative Sampling for
    Conditional Models", eq. 2). Identifies log p(x|c) up to a constant per context, for any K and
    whatever Z(c): softmax of the scores over the support recovers p(x|c). With uniform q this is
    InfoNCE with explicit negatives.

    With several positives each is ranked against the noise alone, and the losses are averaged.

    Args:
        positive_scores: [B] or [B, P].
        noise_scores: [B, K].
        positive_log_q: Broadcastable to `positive_scores`.
        noise_log_q: Broadcastable to [B, K].
        mask: Boolean, broadcastable to [B, K].
        validate_args: Whether to check values as well as shapes.

    Returns:
        [B] losses in nats, >= 0, float32 or float64.
    """
    samples = checked_samples(
        positive_scores,
        noise_scores,
        positive_log_q,
        noise_log_q,
        mask,
        validate_args=validate_args,
    )
    with autocast_off(noise_scores):
        positives, noise = _from_best_noise(samples)
        log_weights = without_masked(noise - samples.noise_log_q, samples)  # [B, K]
        gap = positives - samples.positive_log_q  # [B, P]
        gap = gap - torch.logsumexp(log_weights, dim=-1, keepdim=True)
        gap = gap.masked_fill((samples.n_noise == 0)[:, None], 0.0)  # or its curvature is NaN
        return blank(-F.logsigmoid(gap).mean(dim=-1), samples)


def negative_sampling(
    positive_scores: Tensor,
    noise_scores: Tensor,
    *,
    mask: Tensor | None = None,
    validate_args: bool = True,
) -> Tensor:
    """Return word2vec's loss: logistic regression on the scores alone.

    softplus(-s) for data plus the sum of softplus(s) over noise (Mikolov et al. 2013, "Distributed
    Representations of Words and Phrases", eq. 4). It does not estimate p(x|c): it identifies
    s = log p(x|c) - log q(x) - log K, pointwise mutual information shifted by log K if q is the
    marginal (Levy & Goldberg 2014). It equals `local_nce` where K q = 1, that is for uniform noise
    with K = |V|. Good for embeddings; where probabilities are wanted take `local_nce`, which allows
    for log q and log K itself.

    Args:
        positive_scores: [B] or [B, P].
        noise_scores: [B, K].
        mask: Boolean, broadcastable to [B, K].
        validate_args: Whether to check values as well as shapes.

    Returns:
        [B] losses in nats, >= 0, float32 or float64.
    """
    samples = checked_samples(
        positive_scores, noise_scores, None, None, mask, validate_args=validate_args
    )
    with autocast_off(noise_scores):
        return _logistic(samples.positives, samples.noise, samples)


def _from_best_noise(samples: Samples) -> tuple[Tensor, Tensor]:
    """Return scores less the best noise score of their row, before log q is lost in rounding."""
    best = without_masked(samples.noise, samples).amax(dim=-1, keepdim=True).detach()  # [B, 1]
    return samples.positives - best, samples.noise - best


def _logistic(positives: Tensor, noise: Tensor, samples: Samples) -> Tensor:
    """Return mean softplus(-positives) + sum softplus(noise) per row: [B]."""
    of_noise = F.logsigmoid(-noise)
    if samples.used is not None:
        of_noise = of_noise.masked_fill(~samples.used, 0.0)
    return blank(-F.logsigmoid(positives).mean(dim=-1) - of_noise.sum(dim=-1), samples)


def _check_log_z(log_z: float | Tensor, n_contexts: int, *, validate_args: bool) -> float | Tensor:
    """Return log Z in a form that broadcasts against [B, K]."""
    if not isinstance(log_z, Tensor):
        check_number("log_z", log_z)
        return log_z
    if log_z.ndim > 1 or (log_z.ndim == 1 and len(log_z) != n_contexts):
        raise ValueError(
            f"Expected `log_z` to be a number, 0-dim or of shape [{n_contexts}], got "
            f"{tuple(log_z.shape)}."
        )
    if validate_args:
        check_finite("log_z", log_z)
    return log_z if log_z.ndim == 0 else log_z[:, None]
