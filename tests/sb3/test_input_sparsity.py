"""The group lasso on the inputs of vectors: it takes out noise, and leaves what is useful."""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from rl_infonce.sb3.callbacks import trained_extractors
from rl_infonce.sb3.vector_encoder import VectorEncoder
from tests.further import further
from tests.sb3.worlds import extractors_of, policy_kwargs

Vector = npt.NDArray[np.float32]


class _Noisy(gym.ObservationWrapper[Vector, Any, Any]):
    """A pendulum whose three numbers have nine of white noise behind them."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (12,), np.float32)
        self.rng = np.random.default_rng(0)

    def observation(self, observation: Vector) -> Vector:
        return np.concatenate([observation, self.rng.normal(size=9)]).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("sparsity", [further(0.0), 0.1])
def test_sparsity_takes_out_the_inputs_that_the_loss_has_no_use_for(sparsity: float) -> None:
    lengths = _fitted_lengths(sparsity)
    state, noise = float(lengths[:3].min()), float(lengths[3:].max())
    assert state > 0.1
    assert (noise < 0.1 * state) == (sparsity > 0), lengths


def test_sparsity_leaves_useful_inputs_half_of_the_norm_and_goes_on_with_short_ones() -> None:
    encoder = VectorEncoder(spaces.Box(-1, 1, (6,)), 4, precision="fp32", with_observation=False)
    weight = encoder.get_parameter("mlp.0.weight")
    with torch.no_grad():
        weight[:, 0] *= 0.9
        weight[:, 1] *= 0.05
    first = weight.norm(dim=0).detach()
    least = 0.5 * (128 / 3) ** 0.5
    for _ in range(1000):
        encoder.shrink_inputs(0.001)
    lengths = weight.norm(dim=0).detach()
    useful = torch.arange(6) != 1
    assert lengths[1] == 0
    assert float(lengths.norm()) == pytest.approx(least, rel=0.01)
    taken = (first - lengths)[useful]
    torch.testing.assert_close(taken, taken.mean().expand(5), rtol=1e-3, atol=1e-4)
    weight.requires_grad_(False)
    encoder.shrink_inputs(1.0)
    assert torch.equal(weight.norm(dim=0), lengths)


def _fitted_lengths(sparsity: float) -> torch.Tensor:
    """Return the length of each input's weights after 600 updates."""
    updates: dict[str, Any] = {
        "encoder_updates": 300,
        "encoder_learning_rate": 0.003,
        "n_pairs": 64,
    }
    kwargs = policy_kwargs(
        isolated=True, action_conditioning=True, horizons=(1,), input_sparsity=sparsity, **updates
    )
    env = DummyVecEnv([_Noisy])
    model = PPO("MlpPolicy", env, 1e-4, 1024, 512, 1, policy_kwargs=kwargs, seed=0, device="cpu")
    model.learn(2048)
    trained_extractors(model.policy)[0].make_updates_due()
    columns = extractors_of(model)[0].get_submodule("mlp").get_parameter("0.weight")
    lengths: torch.Tensor = columns.detach().norm(dim=0)
    return lengths
