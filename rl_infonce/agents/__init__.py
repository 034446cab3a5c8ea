"""SB3 models: open saved ones, start them from a pretrained encoder, and let them play."""

from rl_infonce.agents.epsilon_greedy import epsilon_greedy_policy
from rl_infonce.agents.features import count_vectors, feature_function
from rl_infonce.agents.pretrained import freeze_encoder, use_encoder
from rl_infonce.agents.saved_extractor import read_encoder
from rl_infonce.agents.saved_policy import read_policy

__all__ = [
    "count_vectors",
    "epsilon_greedy_policy",
    "feature_function",
    "freeze_encoder",
    "read_encoder",
    "read_policy",
    "use_encoder",
]
