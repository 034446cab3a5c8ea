"""Inputs that the loss has no use for reach no policy, and those that it has use for do."""

from pathlib import Path
from statistics import NormalDist
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
from rl_infonce.sb3.batch_sampling import ObservationBatch, sample_batch
from rl_infonce.sb3.callbacks import trained_extractors
from rl_infonce.sb3.input_selection import (
    CHANCE,
    FIRST_TEST,
    KEPT_SHARE,
    MIN_PAIRS,
    Increases,
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
    seen = {"select_inputs": True, "with_observation": True}
    faster = {"encoder_learning_rate": 0.003, **seen, **settings}
    kwargs = {
        "features_extractor_class": InfoNCEExtractor,
        "features_extractor_kwargs": faster,
        "net_arch": [16],
    }
    env = DummyVecEnv([lambda seed=seed: _Noisy(seed) for seed in range(4)])  # type: ignore[misc]
    if name == "PPO":
        return PPO("MlpPolicy", env, n_steps=128, n_epochs=1, policy_kwargs=kwargs, seed=0)
    if name == "SAC":
        small: dict[str, Any] = {"batch_size": 32, "buffer_size": 1000}
        return SAC("MlpPolicy", DummyVecEnv([_Noisy]), policy_kwargs=kwargs, seed=0, **small)
    if name == "SAC, many updates":
        small = {"batch_size": 32, "buffer_size": 1000, "gradient_steps": 4}
        return SAC("MlpPolicy", DummyVecEnv([_Noisy]), policy_kwargs=kwargs, seed=0, **small)
    rounds: dict[str, Any] = {"learning_starts": 400, "train_freq": 25, "gradient_steps": 25}
    return SAC("MlpPolicy", env, buffer_size=4000, policy_kwargs=kwargs, seed=0, **rounds)


def selection_of(extractor: InfoNCEExtractor) -> InputSelection:
    assert extractor.own_updates is not None
    assert extractor.own_updates.selection is not None
    return extractor.own_updates.selection


@pytest.mark.parametrize(
    ("name", "n_steps"),
    [("PPO", 6 * 512), further("SAC", 700), further("SAC, four environments", 3000)],
)
def test_useful_inputs_are_told_from_noise(name: str, n_steps: int, tmp_path: Path) -> None:
    model = build(name).learn(n_steps)
    every = [each for each in model.policy.modules() if isinstance(each, InfoNCEExtractor)]
    for extractor in every:
        assert torch.equal(selection_of(extractor).selected, IS_USEFUL)
    assert len(every) == (1 if name == "PPO" else 3)
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
    raw.context[..., 2] = raw.futures[..., 2] = 5.0
    raw.futures[1, 3, 2] = 6.0
    before = raw._replace(context=raw.context.copy(), futures=raw.futures.copy())
    seen: list[ObservationBatch] = []

    def losses_of(each: ObservationBatch) -> Tensor:
        seen.append(each)
        return distances(each)

    increases = permuted_increases(losses_of, raw, 4, np.random.default_rng(1))
    assert increases.losses.shape == (3, 4)
    assert not increases.losses[2].any()
    np.testing.assert_array_equal(raw.context, before.context)
    for index, each in enumerate(seen[1:]):
        others = [other for other in range(3) if other != index]
        np.testing.assert_array_equal(each.context[..., others], raw.context[..., others])
        np.testing.assert_array_equal(each.futures[..., others], raw.futures[..., others])
        rise = distances(each)[:4] - distances(raw)[:4]
        torch.testing.assert_close(increases.losses[index], rise)
        differs = (each.context != raw.context).any(axis=(1, 2))
        differs |= (each.futures != raw.futures).any(axis=(0, 2))
        np.testing.assert_array_equal(increases.has_changed[index].numpy(), differs[:4])
    assert not increases.has_changed[2].all()
    for index, each in enumerate(seen[1:3]):
        orders = []
        for now, then in (
            (each.context[..., index], raw.context[..., index]),
            (each.futures[..., index].T, raw.futures[..., index].T),
        ):
            order = [int(np.flatnonzero((then == row).all(axis=1))[0]) for row in now]
            assert sorted(order) == list(range(6)) != order
            orders.append(order)
        assert orders[0] != orders[1]


def all_changed(losses: Tensor) -> Increases:
    return Increases(losses, torch.ones_like(losses, dtype=torch.bool))


def test_an_input_is_selected_by_its_mean_over_its_error() -> None:
    selection = InputSelection(4)
    rng = np.random.default_rng(0)
    spread = [[1.0], [1.0], [0.2], [1.0]]
    means = ([[0.4], [0.0], [0.1], [0.0]], [[-2.0], [0.9], [0.1], [0.0]])
    tests = [rng.normal(mean, spread, (4, n)) for mean, n in zip(means, (90, 70), strict=True)]
    assert selection.selected.all()
    decisions = []
    for index, losses in enumerate(tests, start=1):
        selection.count(all_changed(torch.as_tensor(losses)), 100 * index, 0)
        each = np.concatenate(tests[:index], axis=1)
        sizes = [len(test.T) for test in tests[:index]]
        weights = np.repeat([KEPT_SHARE ** (index - 1 - i) for i in range(index)], sizes)
        mean = np.average(each, axis=1, weights=weights)
        variance = np.average((each - mean[:, None]) ** 2, axis=1, weights=weights)
        z = mean / np.sqrt(variance / (weights.sum() - 1))
        decisions.append((z > NormalDist().inv_cdf(1 - CHANCE / 4)).tolist())
        assert selection.selected.tolist() == decisions[-1]
    assert decisions == [[True, False, True, False], [False, True, True, False]]


@pytest.mark.parametrize("n_inputs", [2, 100])
def test_the_more_inputs_the_more_evidence_each_needs(n_inputs: int) -> None:
    least = NormalDist().inv_cdf(1 - CHANCE / n_inputs)
    noise = torch.randn(70, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sample = (noise - noise.mean()) / noise.std()  # whose mean has an error of 1 / sqrt(70)
    for share in (0.999, 1.001):
        losses = sample.expand(n_inputs, -1).clone()
        losses[0] += 10
        losses[1] += share * least / 70**0.5
        selection = InputSelection(n_inputs)
        selection.count(all_changed(losses), 50, 0)
        assert selection.selected.tolist() == [True, share > 1] + [False] * (n_inputs - 2)


def test_few_pairs_decide_nothing_until_there_are_more() -> None:
    whole, in_parts = InputSelection(3), InputSelection(3)
    losses = torch.randn(3, 2 * MIN_PAIRS, generator=torch.Generator().manual_seed(0))
    losses[0] += 1
    for first in (0, MIN_PAIRS):
        whole.count(all_changed(losses[:, first : first + MIN_PAIRS]), 50 + first, 0)
        for n_pairs in range(0, MIN_PAIRS, 4):
            assert in_parts.is_due(50 + first)
            before = in_parts.selected.clone()
            part = losses[:, first + n_pairs : first + n_pairs + 4]
            in_parts.count(all_changed(part), 50 + first, 0)
            assert n_pairs == MIN_PAIRS - 4 or torch.equal(in_parts.selected, before)
        assert not in_parts.is_due(50 + first)
        assert in_parts.selected.tolist() == whole.selected.tolist() == [True, False, False]


def test_an_input_that_hardly_varies_stays_what_it_was() -> None:
    generator = torch.Generator().manual_seed(0)
    selection, has_changed = InputSelection(4), torch.ones(4, 100, dtype=torch.bool)
    has_changed[3] = torch.arange(100) < 20  # such as a flag that is seldom set
    losses = torch.randn(4, 100, generator=generator)
    losses[:2] += 2
    losses[3, :20] = 0.1
    selection.count(Increases(losses, has_changed), 50, 0)
    assert selection.selected.tolist() == [True, True, False, True]
    losses[1:3], has_changed[1:3] = 0, False
    for n_updates in (100, 200, 300, 400, 500, 600, 700, 800):
        selection.count(Increases(losses, has_changed), n_updates, 0)
        assert selection.selected.tolist() == [True, True, False, True]


def test_noise_seldom_passes_and_others_stay_with_it() -> None:
    """The loss uses the noise; on pairs that trained nothing that is worth nothing."""
    n_withheld = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        selection = InputSelection(2)
        increases = permuted_increases(distances, batch(rng, 128), 128, rng)
        selection.count(Increases(*(each[:2] for each in increases)), 50, 0)
        n_withheld += not selection.selected.all()
    assert n_withheld <= 2


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
            selection.count(all_changed(torch.rand(n_inputs, MIN_PAIRS)), n_updates, 0)
            tested.append(n_updates)
    assert tested == expected


def test_pairs_that_are_not_finite_count_for_nothing() -> None:
    losses = torch.randn(3, 80, generator=torch.Generator().manual_seed(0))
    losses[0] += 1
    broken, clean = InputSelection(3), InputSelection(3)
    torn = torch.cat([losses, torch.tensor([[1.0], [torch.inf], [1.0]])], dim=1)
    broken.count(all_changed(torn), 50, 0)
    clean.count(all_changed(losses), 50, 0)
    for _ in range(5):
        broken.count(all_changed(torch.full((3, 80), torch.nan)), 60, 0)
    assert clean.selected.tolist() == [True, False, False]
    for theirs, own in zip(broken.buffers(), clean.buffers(), strict=True):
        assert torch.equal(theirs, own)


def test_where_no_input_passes_all_are_selected() -> None:
    selection = InputSelection(3)
    losses = torch.randn(3, 80, generator=torch.Generator().manual_seed(0))
    chance = losses - losses.mean(dim=1, keepdim=True)
    losses[0] += 1
    selection.count(all_changed(losses), 50, 0)
    assert selection.selected.tolist() == [True, False, False]
    for n_updates in range(100, 3000, 100):
        selection.count(all_changed(chance), n_updates, 0)
    assert selection.selected.all()


@pytest.mark.filterwarnings("ignore:The InfoNCE bound is saturated")
@pytest.mark.parametrize("name", ["PPO", "SAC", further("SAC, many updates")])
def test_inputs_are_tested_on_pairs_that_trained_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: set[bytes] = set()
    tested: list[int] = []
    seen: set[bytes] = set()
    stages = (
        "rl_infonce.sb3.input_selection.permuted_increases",
        "rl_infonce.sb3.updates.sample_batch",
    )

    def testing(losses: Any, raw: ObservationBatch, n_tested: int, rng: Any) -> Increases:
        for now, then in zip(raw.context[:n_tested, -1], raw.futures[0], strict=False):
            assert not {now.tobytes(), then.tobytes()} & trained
        older = [each.tobytes() for each in raw.context[n_tested:, -1]]
        assert len({*older}) == len(older)
        tested.append(n_tested)
        seen.update(each.tobytes() for each in raw.context[:n_tested, -1])
        assert len(seen) == sum(tested), "a pair counts twice"
        counts = losses.__self__.encoder.get_buffer("normalizer.running_count")
        before = counts.clone()
        increases = permuted_increases(losses, raw, n_tested, rng)
        assert counts == before > 0, "the running means have seen shuffled inputs"
        return increases

    def training(*arguments: Any) -> ObservationBatch | None:
        raw = sample_batch(*arguments)
        if raw is not None:
            trained.update(each.tobytes() for each in raw.context[:, -1])
            trained.update(each.tobytes() for each in raw.futures[0])
        return raw

    monkeypatch.setattr(stages[0], testing)
    monkeypatch.setattr(stages[1], training)
    build(name).learn(10 * 512 if name == "PPO" else 700)
    assert len(tested) > 2
    assert set(tested) == ({256} if name == "PPO" else set(tested) & {*range(MIN_PAIRS, 129)})
