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

from rl_infonce import InfoNCEExtractor
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
    assert any("NaN or infinity in 1 of 1, in dimensions [0, 1, 2" in each for each in said)
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
    with warnings.catch_warnings(record=True) as caught, contextlib.suppress(ValueError):
        warnings.simplefilter("always")
        model.learn(N_STEPS)  # which torch ends in its own words, for PPO and NaN
    words = r"finite observations, got .* in \d+ of \d+, in dimensions \[1\]\..*VecCheckNan"
    assert sum(bool(re.search(words, str(each.message))) for each in caught) == 1


def test_large_numbers_are_finite() -> None:
    extractor = InfoNCEExtractor(spaces.Box(-np.inf, np.inf, (3,)), preset="cpc")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        extractor(torch.full((4, 3), torch.finfo(torch.float32).max))
