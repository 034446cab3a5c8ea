"""The mathematics of noise-contrastive estimation: scores in, nats out. Needs torch only."""

from rl_infonce.nce.contrast import contrast
from rl_infonce.nce.critics import (
    BilinearCritic,
    CosineCritic,
    Critic,
    SeparableMLPCritic,
)
from rl_infonce.nce.losses import (
    info_nce,
    symmetric_info_nce,
)
from rl_infonce.nce.mutual_information import (
    info_nce_bound,
    log_candidates,
)
from rl_infonce.nce.retrieval import retrieval_accuracy

__all__ = [
    "BilinearCritic",
    "CosineCritic",
    "Critic",
    "SeparableMLPCritic",
    "contrast",
    "info_nce",
    "info_nce_bound",
    "log_candidates",
    "retrieval_accuracy",
    "symmetric_info_nce",
]
