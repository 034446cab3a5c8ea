"""A policy with our extractor is exported as stock SB3's policies are."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn
from torch.distributions import Distribution

from tests.sb3.worlds import ALGORITHMS, N_STEPS, VECTOR_ALGORITHMS, noise_images, policy_kwargs


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """SB3's distributions look at their numbers, which no export can."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    yield
    Distribution.set_default_validate_args(before)


class Exportable(nn.Module):
    """The wrapper of SB3's documentation, "Exporting models"."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Tensor) -> Any:
        return self.policy(observations, deterministic=True)


def exported(model: BaseAlgorithm, observations: Tensor) -> tuple[Any, Any]:
    """Return what the policy says, and what it says when it is exported."""
    policy: Any = model.policy
    policy.set_training_mode(False)
    wrapped = Exportable(getattr(policy, "actor", policy))
    program = torch.export.export(wrapped, (observations,), strict=False)
    return wrapped(observations), program.module()(observations)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", "SAC"])
@pytest.mark.parametrize("coef", [0.0, 0.01])
def test_policies_of_vectors_are_exported(name: str, coef: float) -> None:
    model = VECTOR_ALGORITHMS[name](policy_kwargs(infonce_coef=coef), **continuous(name))
    model.learn(N_STEPS)
    said, found = exported(model, torch.randn(1, 5, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(found, said)


@pytest.mark.slow
def test_policies_of_images_are_exported() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(), continuous=True).learn(N_STEPS)
    said, found = exported(model, noise_images(1))
    torch.testing.assert_close(found, said)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_policies_of_vectors_are_traced_with_torchs_own_check(name: str) -> None:
    policy: Any = VECTOR_ALGORITHMS[name](policy_kwargs(), **continuous(name)).policy
    policy.set_training_mode(False)
    wrapped = Exportable(getattr(policy, "actor", policy))
    vectors = torch.randn(1, 5, generator=torch.Generator().manual_seed(0))
    traced = torch.jit.trace(wrapped, vectors)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(traced(vectors), wrapped(vectors))


def continuous(name: str) -> dict[str, bool]:
    return {"continuous": True} if name == "PPO" else {}
