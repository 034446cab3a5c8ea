"""Observations that are NaN or infinite are named, and leave an isolated encoder alone."""

import contextlib
import copy
import re
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium import spaces

from rl_infonce import InfoNCECombinedExtractor, InfoNCEExtractor
from tests.sb3.fakes import StampedVectorEnv, stamped_vec_env
from tests.sb3.test_isolated import are_same, build
from tests.sb3.worlds import N_STEPS, VECTOR_ALGORITHMS, extractors_of, policy_kwargs


class Blind(StampedVectorEnv):
    """Observes NaN alone."""

    def observation(self) -> npt.NDArray[Any]:
        return np.full_like(super().observation(), np.nan)


def test_observations_of_nan_leave_the_encoder_alone_and_are_warned_of() -> None:
    model = build("DQN")
    model.set_env(stamped_vec_env(1, Blind, lengths=(9, 15)))
    (extractor,) = extractors_of(model)
    before = copy.deepcopy(extractor.encoder.state_dict())
    with pytest.warns() as caught:
        model.learn(N_STEPS)
    said = [str(each.message) for each in caught]
    assert any("1 of 1 InfoNCE losses" in each and "NaN or infinite" in each for each in said)
    assert any(
        "NaN or infinity in 1 of 1 observations, in dimensions [0, 1" in each for each in said
    )
    assert are_same(before, extractor.encoder.state_dict())


class Unsteady(StampedVectorEnv):
    """Observes one number that is not finite at times."""

    number = np.nan

    def observation(self) -> npt.NDArray[Any]:
        seen = super().observation()
        if self.time == 5:
            seen[1] = self.number
        return seen


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC", "TD3"])
def test_one_number_that_is_not_finite_is_named_once(
    name: str, isolated: bool, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unsteady, "number", number)
    model = VECTOR_ALGORITHMS[name](policy_kwargs(isolated=isolated))
    continuous = {"continuous": True} if name in ("SAC", "TD3") else {}
    model.set_env(stamped_vec_env(model.n_envs, Unsteady, lengths=(9, 15), **continuous))
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.suppress(ValueError, RuntimeError),
    ):
        warnings.simplefilter("always")
        model.learn(N_STEPS)  # which torch ends in its own words, for PPO and NaN
    words = r"got NaN or infinity in \d+ of \d+ observations, in dimensions \[1\]\. Find.*Check"
    assert sum(bool(re.search(words, str(each.message))) for each in caught) == 1


def test_large_numbers_are_finite() -> None:
    extractor = InfoNCEExtractor(spaces.Box(-np.inf, np.inf, (3,)), preset="cpc")
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        extractor(torch.full((4, 3), torch.finfo(torch.float32).max))
    assert not caught


@pytest.mark.parametrize("shape", [(3,), (4, 84, 84)], ids=["a vector", "an image"])
def test_passes_with_a_gradient_and_images_are_not_looked_at(shape: tuple[int, ...]) -> None:
    is_image = len(shape) == 3
    kinds: dict[str, Any] = {"dtype": np.uint8, "low": 0, "high": 255} if is_image else {}
    space = spaces.Box(**{"low": -1.0, "high": 1.0, "shape": shape, **kinds})
    extractor = InfoNCEExtractor(space, preset="cpc").eval()
    with warnings.catch_warnings(record=True) as caught, torch.set_grad_enabled(not is_image):
        warnings.simplefilter("always")
        extractor(torch.full((2, *shape), torch.nan))
    assert not caught


def test_the_entry_and_some_of_many_dimensions_are_named() -> None:
    space = spaces.Dict(near=spaces.Box(-1.0, 1.0, (12,)), far=spaces.Box(-1.0, 1.0, (2,)))
    extractor = InfoNCECombinedExtractor(space, preset="cpc").eval()
    seen = {"near": torch.full((3, 12), torch.inf), "far": torch.tensor([[0.0, torch.nan]] * 3)}
    with pytest.warns(UserWarning, match="finite") as caught, torch.no_grad():
        extractor(seen)
    far, near = sorted(str(each.message) for each in caught)
    assert (
        "observations 'far', got NaN or infinity in 3 of 3 observations, in dimensions [1]." in far
    )
    assert "'near', got" in near
    assert "in dimensions [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] and 2 more. Find" in near


def test_a_pass_is_compiled_as_one_graph() -> None:
    extractor = InfoNCEExtractor(spaces.Box(-1.0, 1.0, (3,)), preset="cpc").eval()
    compiled = torch.compile(extractor, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(torch.ones(2, 3)), extractor(torch.ones(2, 3)))
