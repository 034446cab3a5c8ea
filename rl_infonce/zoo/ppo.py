"""RL Zoo's PPO on Atari with an `InfoNCEExtractor`: `rl_zoo3.train -conf rl_infonce.zoo.ppo`."""

from rl_infonce.training.rl_zoo import N_ENVS, PPO_SETTINGS
from rl_infonce.zoo.configuration import atari_with_infonce

hyperparams = atari_with_infonce({"n_envs": N_ENVS["ppo"], **PPO_SETTINGS})
