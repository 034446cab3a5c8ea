"""The mathematics of noise-contrastive estimation: scores in, nats out. Needs torch only."""

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

__all__ = [
    "BilinearCritic",
    "CosineCritic",
    "Critic",
    "SeparableMLPCritic",
    "info_nce",
    "symmetric_info_nce",
]
