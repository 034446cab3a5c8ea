"""What the arms of a comparison compute, counted."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from rl_infonce.sweeps import estimate
from rl_infonce.sweeps.arms import ARMS, merged
from rl_infonce.sweeps.grid import Cell

pytestmark = [pytest.mark.atari, pytest.mark.slow]

# A rollout of PPO, a quarter as long as by default, and four of DQN's steps with updates.
N_STEPS = {"ppo": 1, "dqn": 56}
# Pairs of the minibatch cost hardly any compute; what is drawn and encoded has this control.
SHORT = {"pairs_from": "buffer", "hyperparameters": {"ppo": {"n_steps": 32}}}


def operations(arm: str, algo: str) -> int:
    """Return the floating-point operations of the first steps of a training."""
    cell = Cell("breakout", algo, arm, 0, merged(SHORT, ARMS[arm], algo))
    own = {"learning_starts": 40} if algo == "dqn" else {}
    model = estimate._model(cell, 1000, device="cpu", **own)
    with FlopCounterMode(display=False) as counter:
        model.learn(N_STEPS[algo])
    model.get_env().close()
    return int(counter.get_total_flops())


@pytest.mark.thorough
@pytest.mark.parametrize(("algo", "lowest", "highest"), [("ppo", 0.98, 1.02), ("dqn", 0.75, 0.85)])
def test_controls_compute_what_the_loss_does(algo: str, lowest: float, highest: float) -> None:
    with_loss = operations("infonce", algo)
    assert operations("placebo", algo) == with_loss
    assert lowest < operations("extra_updates", algo) / with_loss < highest
    assert operations("baseline", algo) < lowest * with_loss
