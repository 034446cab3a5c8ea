"""Inputs that the loss has no use for reach no policy, and those that it has use for do."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from rl_infonce import InfoNCEExtractor
from rl_infonce.sb3.batch_sampling import ObservationBatch
from rl_infonce.sb3.callbacks import trained_extractors
from rl_infonce.sb3.input_selection import (
    FIRST_TEST,
    KEPT_SHARE,
    SIGNIFICANCE,
    InputSelection,
    permuted_increases,
)
from tests.further import further
from tests.sb3.worlds import extractors_of

Vector = npt.NDArray[np.float32]
N_NOISE = 20


class _Noisy(gym.ObservationWrapper[Vector, Any, Any]):
    """A pendulum whose three numbers stand between white noise, of mean 3, and a constant."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(gym.make("Pendulum-v1", max_episode_steps=50))
        self.observation_space = spaces.Box(-np.inf, np.inf, (4 + N_NOISE,), np.float32)
        self.rng = np.random.default_rng(seed)

    def observation(self, observation: Vector) -> Vector:
        noise = self.rng.normal(3.0, size=N_NOISE)
        return np.concatenate([noise, observation, [7.0]]).astype(np.float32)


IS_USEFUL = torch.arange(4 + N_NOISE) >= N_NOISE


def build(name: str, **settings: Any) -> BaseAlgorithm:
    faster = {"encoder_learning_rate": 0.003, **settings}
    kwargs = {
        "features_extractor_class": InfoNCEExtractor,
        "features_extractor_kwargs": faster,
        "net_arch": [16],
    }
    env = DummyVecEnv([lambda seed=seed: _Noisy(seed) for seed in range(4)])  # type: ignore[misc]
    if name == "PPO":
        return PPO("MlpPolicy", env, n_steps=128, n_epochs=1, policy_kwargs=kwargs, seed=0)
    rounds: dict[str, Any] = {"learning_starts": 400, "train_freq": 25, "gradient_steps": 25}
    return SAC("MlpPolicy", env, buffer_size=4000, policy_kwargs=kwargs, seed=0, **rounds)


def selection_of(extractor: InfoNCEExtractor) -> InputSelection:
    assert extractor.own_updates is not None
    assert extractor.own_updates.selection is not None
    return extractor.own_updates.selection


@pytest.mark.parametrize(("name", "n_steps"), [("PPO", 6 * 512), ("SAC", 3000)])
def test_useful_inputs_are_told_from_noise(name: str, n_steps: int, tmp_path: Path) -> None:
    model = build(name).learn(n_steps)
    every = [each for each in model.policy.modules() if isinstance(each, InfoNCEExtractor)]
    for extractor in every:
        assert torch.equal(selection_of(extractor).selected, IS_USEFUL)
    assert len(every) == (3 if name == "SAC" else 1)
    assert extractors_of(model)[0].last_infonce["selected_inputs"] == 4
    one, other = (torch.as_tensor(_Noisy(seed).reset(seed=0)[0])[None] for seed in (0, 1))
    assert not torch.equal(one, other)
    extractor = trained_extractors(model.policy)[0]
    received = extractor(one)
    assert torch.equal(received, extractor(other))
    assert torch.equal(received[:, N_NOISE : 4 + N_NOISE], one[:, N_NOISE:])
    torch.testing.assert_close(
        received[:, :N_NOISE], torch.full((1, N_NOISE), 3.0), atol=0.2, rtol=0
    )
    broken = other.clone()
    broken[:, 0] = torch.nan
    assert torch.equal(received, extractor(broken))
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    assert torch.equal(trained_extractors(loaded.policy)[0](one), received)


@pytest.mark.parametrize(
    "settings",
    [
        {"positives": "shuffled"},
        further({"infonce_coef": 0.0}),
        further({"select_inputs": False}),
    ],
)
def test_all_inputs_stay_where_nothing_is_known_of_them(settings: dict[str, Any]) -> None:
    model = build("PPO", **settings).learn(6 * 512)
    vectors = torch.randn(5, 4 + N_NOISE)
    for extractor in extractors_of(model):
        assert torch.equal(extractor(vectors)[:, : 4 + N_NOISE], vectors)


def batch(rng: np.random.Generator, n_pairs: int = 6, n_inputs: int = 3) -> ObservationBatch:
    return ObservationBatch(
        context=rng.normal(size=(n_pairs, 2, n_inputs)),
        context_used=np.ones((n_pairs, 2), bool),
        futures=rng.normal(size=(2, n_pairs, n_inputs)),
        mask=np.ones((2, n_pairs, n_pairs), bool),
        time_mask=np.ones((n_pairs, n_pairs), bool),
        actions=None,
    )


def distances(raw: ObservationBatch) -> Tensor:
    """Return how far two of three inputs are now from where they will be; the last is ignored."""
    gap = (raw.context[:, -1] - raw.futures[0]) * np.array([1.0, 0.5, 0.0])
    return torch.as_tensor(np.square(gap).sum(axis=1))


def test_one_input_at_a_time_is_shuffled_now_and_then() -> None:
    raw = batch(np.random.default_rng(0))
    before = raw._replace(context=raw.context.copy(), futures=raw.futures.copy())
    seen: list[ObservationBatch] = []

    def losses_of(each: ObservationBatch) -> Tensor:
        seen.append(each)
        return distances(each)[:4]

    increases = permuted_increases(losses_of, raw, np.random.default_rng(1))
    assert increases.shape == (3, 4)
    assert not increases[2].any()
    np.testing.assert_array_equal(raw.context, before.context)
    for index, each in enumerate(seen[1:]):
        others = [other for other in range(3) if other != index]
        np.testing.assert_array_equal(each.context[..., others], raw.context[..., others])
        np.testing.assert_array_equal(each.futures[..., others], raw.futures[..., others])
        orders = []
        for now, then in (
            (each.context[..., index], raw.context[..., index]),
            (each.futures[..., index].T, raw.futures[..., index].T),
        ):
            order = [int(np.flatnonzero((then == row).all(axis=1))[0]) for row in now]
            assert sorted(order) == list(range(6)) != order
            orders.append(order)
        assert orders[0] != orders[1]
        torch.testing.assert_close(increases[index], distances(each)[:4] - distances(raw)[:4])


def test_white_noise_passes_no_oftener_than_by_chance() -> None:
    """The loss uses the noise; on pairs that trained nothing that is worth nothing."""
    n_passed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        increases = permuted_increases(distances, batch(rng, 64), rng)
        z = increases.mean(dim=1) / (increases.std(dim=1) / 8 + 1e-12)
        n_passed += int((z[:2] > SIGNIFICANCE).sum())
    assert n_passed <= 3


def test_an_input_is_selected_by_its_mean_over_its_error() -> None:
    selection = InputSelection(4)
    rng = np.random.default_rng(0)
    tests = [rng.normal([[0.4], [0.0], [0.1], [0.0]], [[1.0], [1.0], [0.2], [0.0]], (4, 90))]
    tests.append(rng.normal([[0.0], [0.4], [0.1], [0.0]], [[1.0], [1.0], [0.2], [0.0]], (4, 60)))
    assert selection.selected.all()
    for index, increases in enumerate(tests, start=1):
        selection.count(torch.as_tensor(increases), 100 * index)
        each = np.concatenate(tests[:index], axis=1)
        weights = np.concatenate(
            [
                np.full(t.shape[1], KEPT_SHARE ** (index - 1 - i))
                for i, t in enumerate(tests[:index])
            ]
        )
        mean = np.average(each, axis=1, weights=weights)
        variance = np.average((each - mean[:, None]) ** 2, axis=1, weights=weights)
        passes = mean > SIGNIFICANCE * np.sqrt(variance / weights.sum())
        passes[3] = True  # which permutation leaves as it is
        np.testing.assert_array_equal(selection.selected.numpy(), passes)
    assert not passes[:3].all()
    assert passes[:3].any()


@pytest.mark.parametrize(
    ("n_inputs", "expected"),
    [
        (2, [FIRST_TEST, 50, 70, 90, 120, 150, 190, 240, 300, 380]),
        (100, [FIRST_TEST, 90, 140, 190, 240, 300, 380]),
    ],
)
def test_tests_become_rare(n_inputs: int, expected: list[int]) -> None:
    selection = InputSelection(n_inputs)
    tested = []
    for n_updates in range(0, 400, 10):
        if selection.is_due(n_updates):
            selection.count(torch.rand(n_inputs, 5), n_updates)
            tested.append(n_updates)
    assert tested == expected


def test_pairs_that_are_not_finite_count_for_nothing() -> None:
    increases = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    increases[0] += 1
    broken, clean = InputSelection(3), InputSelection(3)
    broken.count(torch.full((3, 2), torch.nan), 40)
    assert broken.selected.all()
    torn = torch.cat([increases, torch.tensor([[1.0], [torch.inf], [1.0]])], dim=1)
    broken.count(torn, 50)
    clean.count(increases, 50)
    assert clean.selected.tolist() == [True, False, False]
    assert torch.equal(broken.selected, clean.selected)


def test_where_no_input_passes_all_are_selected() -> None:
    selection = InputSelection(3)
    selection.count(torch.tensor([[1.0, 1.1], [1.0, -1.0], [-1.0, 1.0]]), 50)
    assert selection.selected.tolist() == [True, False, False]
    for n_updates in (100, 200, 300, 400, 500):
        selection.count(torch.tensor([[1.0, -1.0]] * 3), n_updates)
    assert selection.selected.all()
