"""Configurations for RL Zoo: its own settings on Atari, with an `InfoNCEExtractor`.

`python -m rl_zoo3.train --algo ppo --env PongNoFrameskip-v4 -conf rl_infonce.zoo.ppo` trains with
them, no change in the Zoo needed. Beside the modules lie the same settings as YAML, which the Zoo
saves beside a run without tags of Python classes; it evaluates the string of their `policy_kwargs`.

Source: DLR-RM/rl-baselines3-zoo 2.9.2, hyperparams/ppo.yml and dqn.yml, entry "atari".
"""
