"""RL Zoo's DQN on Atari with an `InfoNCEExtractor`: `rl_zoo3.train -conf rl_infonce.zoo.dqn`."""

from rl_infonce.training.rl_zoo import DQN_SETTINGS
from rl_infonce.zoo.configuration import atari_with_infonce

hyperparams = atari_with_infonce({**DQN_SETTINGS, "optimize_memory_usage": False})
