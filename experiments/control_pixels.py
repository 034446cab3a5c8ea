"""Tasks of dm_control's suite, seen as pictures, under ids that `gym.make` makes.

Importing this module registers an id such as `CartpoleSwingupPixels-v0` for each task below. An
agent sees what it sees with `rl-infonce train --env dm_control/cartpole-swingup-v0`: the last four
gray frames of 84x84, each action repeated as often as studies of pixels do. Making one needs
`pip install "rl-infonce[dmc]"` and, without a screen, MUJOCO_GL=egl or MUJOCO_GL=osmesa.
"""

from __future__ import annotations

from functools import partial

import gymnasium as gym
from gymnasium.envs.registration import registry

from rl_infonce.environments.ids import make_env

TASKS = {
    "CartpoleSwingupPixels-v0": "dm_control/cartpole-swingup-v0",
    "CartpoleBalancePixels-v0": "dm_control/cartpole-balance-v0",
    "ReacherEasyPixels-v0": "dm_control/reacher-easy-v0",
    "FingerSpinPixels-v0": "dm_control/finger-spin-v0",
    "WalkerWalkPixels-v0": "dm_control/walker-walk-v0",
}


def register() -> None:
    """Make the ids known to Gymnasium."""
    for name, task in TASKS.items():
        if name not in registry:
            gym.register(name, partial(make_env, task), disable_env_checker=True)


register()
