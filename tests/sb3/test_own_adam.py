"""The optimiser whose moments are part of the model, against torch's."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from rl_infonce.sb3.attach import AuxiliaryGradients
from rl_infonce.sb3.own_adam import OwnAdam
from tests.draws import normal
from tests.sb3.fakes import StampedVectorEnv
from tests.sb3.worlds import (
    N_STEPS,
    VECTOR_ALGORITHMS,
    assert_same_weights,
    extractors_of,
    policy_kwargs,
)

SHAPES = ((3, 4), (5,), (2, 2))


def parameters(seed: int = 0) -> list[nn.Parameter]:
    return [nn.Parameter(normal(*shape, seed=seed).float()) for shape in SHAPES]


def given(own: list[nn.Parameter], gradients: list[Tensor | None]) -> AuxiliaryGradients:
    pairs = [(p, g.clone()) for p, g in zip(own, gradients, strict=True) if g is not None]
    return AuxiliaryGradients(tuple(p for p, _ in pairs), tuple(g for _, g in pairs), len(pairs))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("learning_rate", [1e-3, 0.1])
def test_steps_are_those_of_torchs_adam_with_clipped_gradients(
    scale: float, learning_rate: float
) -> None:
    own, reference = parameters(), parameters()
    adam = OwnAdam(own)
    expected = torch.optim.Adam(reference, lr=learning_rate)
    for step in range(20):
        gradients: list[Tensor | None] = [
            scale * normal(*shape, seed=100 * step + index).float()
            for index, shape in enumerate(SHAPES)
        ]
        gradients[1] = None  # never
        if step % 3 == 1:
            gradients[2] = None  # now and then
        for parameter, gradient in zip(reference, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        nn.utils.clip_grad_norm_(reference, 10.0)
        expected.step()
        adam.step(own, given(own, gradients), learning_rate)
        for parameter, other in zip(own, reference, strict=True):
            torch.testing.assert_close(parameter, other, rtol=1e-6, atol=1e-7)
    assert all(parameter.grad is None for parameter in own)
    assert torch.equal(own[1], parameters()[1])


def test_moments_are_buffers_and_no_parameters() -> None:
    own = parameters()
    adam = OwnAdam(own)
    assert not list(adam.parameters())
    gradients: list[Tensor | None] = [torch.ones(shape) for shape in SHAPES]
    adam.step(own, given(own, gradients), 0.1)
    again, theirs = OwnAdam(parameters()), copy.deepcopy(own)
    again.load_state_dict(adam.state_dict())
    adam.step(own, given(own, gradients), 0.1)
    again.step(theirs, given(theirs, gradients), 0.1)
    for parameter, other in zip(own, theirs, strict=True):
        assert torch.equal(parameter, other)


def stamped(state: dict[str, Any]) -> DummyVecEnv:
    env = StampedVectorEnv(lengths=(9, 15), continuous=True)
    env.set_state(state)
    return DummyVecEnv([lambda: env])


@pytest.mark.slow
def test_a_saved_model_goes_on_as_the_one_that_was_saved(tmp_path: Path) -> None:
    """SB3 saves neither random streams nor environments; these are handed over here."""
    model: Any = VECTOR_ALGORITHMS["SAC"](policy_kwargs(isolated=True)).learn(N_STEPS)
    model.save(tmp_path / "model.zip")
    model.save_replay_buffer(tmp_path / "buffer")
    env = stamped(model.get_env().envs[0].get_state())
    again = type(model).load(tmp_path / "model.zip", env=env)
    again.load_replay_buffer(tmp_path / "buffer")
    own, other = (extractors_of(each)[0] for each in (model, again))
    assert own.own_updates is not None
    assert own.own_updates.adam.get_buffer("mean_0").any()
    assert_same_weights(own, other, with_own=True)
    for one, two in zip(extractors_of(model), extractors_of(again), strict=True):
        two.set_state(one.get_state(), games_go_on=False)
    for each in (model, again):
        each.set_random_seed(1)
        each.learn(N_STEPS)
    assert own._session.counts.n_updates > 10
    assert_same_weights(model.policy, again.policy, with_own=True)


def test_a_gradient_may_lie_channels_last_in_memory() -> None:
    gradient = normal(8, 4, 3, 3).float()
    moved = []
    for layout in (torch.contiguous_format, torch.channels_last):
        parameter = nn.Parameter(torch.zeros(8, 4, 3, 3))
        adam = OwnAdam([parameter])
        for share in (1.0, 0.5):
            laid_out = (share * gradient).contiguous(memory_format=layout)
            adam.step([parameter], given([parameter], [laid_out]), 0.1)
        moved.append(parameter.detach())
    assert torch.equal(*moved)
