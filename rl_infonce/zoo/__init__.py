"""Configurations for RL Zoo: its own settings on Atari, with an `InfoNCEExtractor`.

`python -m rl_zoo3.train --algo ppo --env PongNoFrameskip-v4 -conf rl_infonce.zoo.ppo` trains with
them, without a change in the Zoo.

Source: DLR-RM/rl-baselines3-zoo 2.9.2, hyperparams/ppo.yml and dqn.yml, entry "atari".
"""
