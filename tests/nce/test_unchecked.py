"""Losses of samples and estimates of information, told not to look at values."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from rl_infonce.nce import (
    density_ratio_score,
    dv_estimate,
    effective_sample_size,
    exact_nll,
    local_nce,
    moving_log_mean_exp,
    negative_sampling,
    nwj_bound,
    partition_nll,
    ranking_nce,
    smile_estimate,
)
from tests.draws import normal

Estimate = Callable[..., Tensor]
SCORES, NOISE, LOG_Q = normal(6), normal(6, 4), normal(6, 4) - 3
POSITIVE_LOG_Q, SQUARE, MEAN = normal(6) - 3, normal(6, 6), torch.tensor(0.5)
MASK = torch.ones(6, 4, dtype=torch.bool)
MASK[0, 1] = False

ESTIMATES: dict[str, Estimate] = {
    "exact_nll": partial(exact_nll, NOISE, torch.tensor([0, 1, 2, 3, 0, 2])),
    "partition_nll": partial(partition_nll, SCORES, NOISE, LOG_Q, mask=MASK),
    "effective_sample_size": partial(effective_sample_size, NOISE, LOG_Q, mask=MASK),
    "local_nce": partial(
        local_nce, SCORES, NOISE, POSITIVE_LOG_Q, LOG_Q, log_z=MEAN.double(), mask=MASK
    ),
    "ranking_nce": partial(ranking_nce, SCORES, NOISE, POSITIVE_LOG_Q, LOG_Q, mask=MASK),
    "negative_sampling": partial(negative_sampling, SCORES, NOISE, mask=MASK),
    "nwj_bound": partial(nwj_bound, SQUARE),
    "dv_estimate": partial(dv_estimate, SQUARE, log_moving_mean=MEAN.to(SQUARE)),
    "moving_log_mean_exp": partial(moving_log_mean_exp, SQUARE, MEAN.to(SQUARE)),
    "smile_estimate": partial(smile_estimate, SQUARE),
    "density_ratio_score": partial(density_ratio_score, SCORES, NOISE),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_sound_values_give_the_same_without_a_look(name: str) -> None:
    estimate = ESTIMATES[name]
    torch.testing.assert_close(estimate(validate_args=False), estimate(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ESTIMATES)
def test_values_that_are_not_finite_pass_only_without_a_look(name: str) -> None:
    function, (first, *rest), given = (
        getattr(ESTIMATES[name], each) for each in ("func", "args", "keywords")
    )
    bad = first.clone()
    bad[-1] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        function(bad, *rest, **given)
    assert bool(function(bad, *rest, **given, validate_args=False).isnan().any())
