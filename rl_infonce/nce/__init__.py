"""The mathematics of noise-contrastive estimation: scores in, nats out. Needs torch only."""

from rl_infonce.nce.contrast import contrast
from rl_infonce.nce.critics import (
    BilinearCritic,
    CosineCritic,
    Critic,
    SeparableMLPCritic,
)
from rl_infonce.nce.gather import gather
from rl_infonce.nce.losses import (
    debiased_info_nce,
    decoupled_info_nce,
    hard_negative_info_nce,
    info_nce,
    multi_positive_info_nce,
    soft_info_nce,
    symmetric_info_nce,
)
from rl_infonce.nce.mutual_information import (
    density_ratio_score,
    dv_estimate,
    info_nce_bound,
    is_saturated,
    log_candidates,
    moving_log_mean_exp,
    nwj_bound,
    smile_estimate,
)
from rl_infonce.nce.noise import (
    CategoricalNoise,
    uniform_noise,
    unigram_noise,
)
from rl_infonce.nce.noise_contrastive import (
    effective_sample_size,
    exact_nll,
    local_nce,
    negative_sampling,
    partition_nll,
    ranking_nce,
)
from rl_infonce.nce.retrieval import retrieval_accuracy

__all__ = [
    "BilinearCritic",
    "CategoricalNoise",
    "CosineCritic",
    "Critic",
    "SeparableMLPCritic",
    "contrast",
    "debiased_info_nce",
    "decoupled_info_nce",
    "density_ratio_score",
    "dv_estimate",
    "effective_sample_size",
    "exact_nll",
    "gather",
    "hard_negative_info_nce",
    "info_nce",
    "info_nce_bound",
    "is_saturated",
    "local_nce",
    "log_candidates",
    "moving_log_mean_exp",
    "multi_positive_info_nce",
    "negative_sampling",
    "nwj_bound",
    "partition_nll",
    "ranking_nce",
    "retrieval_accuracy",
    "smile_estimate",
    "soft_info_nce",
    "symmetric_info_nce",
    "uniform_noise",
    "unigram_noise",
]
