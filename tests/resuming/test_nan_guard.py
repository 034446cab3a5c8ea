"""A gradient that is not finite never reaches the weights."""

from typing import Any

import gymnasium as gym
import pytest
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.resuming.nan_guard import NanGuardCallback
from tests.sb3.worlds import ALGORITHMS, assert_same_weights, policy_kwargs


class Poisoned(gym.RewardWrapper[Any, Any]):
    """Rewards turn NaN between two steps."""

    def __init__(self, game: str, first: int, last: int) -> None:
        super().__init__(gym.make(game))
        self.first, self.last, self.n_steps = first, last, 0

    def reward(self, reward: Any) -> float:
        self.n_steps += 1
        return float("nan") if self.first <= self.n_steps <= self.last else float(reward)


def ppo(first: int = 70, last: int = 70) -> PPO:
    env = Poisoned("CartPole-v1", first, last)
    return PPO("MlpPolicy", env, n_steps=32, batch_size=16, n_epochs=2, seed=0)


def off_policy(algorithm: Any, game: str) -> Any:
    env = Poisoned(game, 40, 400)
    return algorithm("MlpPolicy", env, learning_starts=20, batch_size=64, train_freq=4, seed=0)


class Remember(BaseCallback):
    """Keeps the weights as they were before the last update."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[str, torch.Tensor] = {}

    def _on_rollout_end(self) -> None:
        self.weights = {k: v.clone() for k, v in self.model.policy.state_dict().items()}

    def _on_step(self) -> bool:
        return True


def test_a_bad_update_stops_with_the_weights_before_it() -> None:
    model, before = ppo(), Remember()
    with pytest.raises(
        FloatingPointError, match=r"at step 96, .* \d+ of \d+ tensors, first in \w+"
    ):
        model.learn(320, callback=[before, NanGuardCallback()])
    assert all(torch.isfinite(each).all() for each in model.policy.state_dict().values())
    for name, tensor in model.policy.state_dict().items():
        assert torch.equal(tensor, before.weights[name]), name


@pytest.mark.parametrize(("algorithm", "game"), [(DQN, "CartPole-v1"), (SAC, "Pendulum-v1")])
def test_off_policy_algorithms_stop_as_well(algorithm: Any, game: str) -> None:
    model = off_policy(algorithm, game)
    with pytest.raises(FloatingPointError, match="The weights are those before this update"):
        model.learn(400, callback=NanGuardCallback())
    assert all(torch.isfinite(each).all() for each in model.policy.state_dict().values())


def test_skipping_goes_on_and_says_so() -> None:
    model, guard = ppo(), NanGuardCallback(on_nan="skip")
    with pytest.warns(RuntimeWarning, match="This update is left out"):
        model.learn(320, callback=guard)
    assert model.num_timesteps == 320
    assert guard.n_skipped == 4  # advantages are normalised over the minibatch; 2 epochs of 2
    assert all(torch.isfinite(each).all() for each in model.policy.state_dict().values())


def test_skipping_for_ever_stops() -> None:
    model, guard = ppo(70, 10_000), NanGuardCallback(on_nan="skip")
    with pytest.warns(RuntimeWarning, match="left out"), pytest.raises(FloatingPointError):
        model.learn(640, callback=guard)
    assert guard.n_skipped == 10


def test_an_optimizer_is_not_excused_by_the_others() -> None:
    env = Poisoned("Pendulum-v1", 1, 10_000)  # the critic alone sees rewards
    model = SAC("MlpPolicy", env, learning_starts=20, batch_size=16, seed=0, device="cpu")
    guard = NanGuardCallback(on_nan="skip")
    with pytest.warns(RuntimeWarning, match="left out"), pytest.raises(FloatingPointError):
        model.learn(100, callback=guard)
    assert guard.n_skipped == 10


@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC"])
def test_good_numbers_train_as_without_it(name: str) -> None:
    guarded = ALGORITHMS[name](policy_kwargs())
    guarded.learn(96, callback=NanGuardCallback())
    plain = ALGORITHMS[name](policy_kwargs())
    plain.learn(96)
    assert_same_weights(guarded.policy, plain.policy)


def test_hooks_are_gone_afterwards() -> None:
    model = ppo()
    for _ in range(2):
        model.learn(32, callback=NanGuardCallback())
        assert not model.policy.optimizer._optimizer_step_pre_hooks
    with pytest.raises(FloatingPointError):
        model.learn(320, callback=NanGuardCallback())
    assert not model.policy.optimizer._optimizer_step_pre_hooks, "after a stop"


class Interrupt(BaseCallback):
    """Ctrl-C, in the second rollout."""

    def _on_step(self) -> bool:
        if self.num_timesteps > 40:
            raise KeyboardInterrupt
        return True


def test_the_guard_of_an_interrupted_training_guards_no_other() -> None:
    model, guard = ppo(), NanGuardCallback(on_nan="skip")
    with pytest.raises(KeyboardInterrupt):
        model.learn(320, callback=[NanGuardCallback(), Interrupt()])
    with pytest.warns(RuntimeWarning, match="This update is left out"):
        model.learn(320, callback=guard)
    assert guard.n_skipped == 4


def test_a_bad_argument_is_named() -> None:
    with pytest.raises(ValueError, match="`on_nan`"):
        NanGuardCallback(on_nan="ignore")
