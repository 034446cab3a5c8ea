from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from rl_infonce import temporal
from rl_infonce.temporal import (
    BoolArray,
    IntArray,
    check_horizons,
    distinct_mask,
    episode_ids,
    legal_anchors,
    negative_mask,
    sample_pairs,
)

SHAPES = [(n_steps, n_envs) for n_steps in range(1, 11) for n_envs in range(1, 10 // n_steps + 1)]


def all_patterns(n_steps: int, n_envs: int) -> Iterator[BoolArray]:
    for bits in itertools.product([False, True], repeat=n_steps * n_envs):
        yield np.array(bits, dtype=np.bool_).reshape(n_steps, n_envs)


def brute_force_anchors(last_step: BoolArray, horizon: int) -> set[tuple[int, int]]:
    n_steps, n_envs = last_step.shape
    return {
        (step, env)
        for step in range(n_steps)
        for env in range(n_envs)
        if step + horizon < n_steps
        and not any(last_step[between, env] for between in range(step, step + horizon))
    }


@pytest.mark.parametrize(("n_steps", "n_envs"), SHAPES)
def test_legal_anchors_equal_brute_force_on_every_pattern(n_steps: int, n_envs: int) -> None:
    for last_step in all_patterns(n_steps, n_envs):
        ids = episode_ids(last_step)
        for horizon in range(n_steps + 1):
            steps, envs = legal_anchors(ids, horizon)
            found = list(zip(steps.tolist(), envs.tolist(), strict=True))
            assert found == sorted(brute_force_anchors(last_step, horizon))


@pytest.mark.parametrize("listed_starts", [0, 4096], ids=["drawn", "listed"])
@pytest.mark.parametrize(("n_steps", "n_envs"), [(4, 2), (7, 1), (2, 4)])
def test_sample_pairs_draw_exactly_the_legal_anchors_on_every_pattern(
    n_steps: int, n_envs: int, listed_starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of plain rows and of rings, at every seam and with rows that are not filled."""
    monkeypatch.setattr(temporal, "_LISTED_STARTS", listed_starts)
    rng = np.random.default_rng(0)
    for last_step in all_patterns(n_steps, n_envs):
        n_rows = n_steps + int(rng.integers(3))
        oldest_row = int(rng.integers(n_rows))
        ring = rng.integers(99, size=(n_rows, n_envs))  # what is not filled may hold any number
        ring[(np.arange(n_steps) + oldest_row) % n_rows] = episode_ids(last_step)
        for horizons in [(1,), (2, 1), (1, 3), (0,)]:
            legal = brute_force_anchors(last_step, max(horizons))
            for n_pairs in {1, max(len(legal) - 1, 1), len(legal) + 1}:
                drawn = sample_pairs(
                    ring, horizons, n_pairs, rng, oldest_row=oldest_row, n_steps=n_steps
                )
                anchors = list(zip(*map(np.ndarray.tolist, drawn), strict=True))
                assert len(anchors) == len(set(anchors)) == min(n_pairs, len(legal))
                assert set(anchors) <= legal


def test_the_drawing_of_few_pairs_from_many_starts_lists_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(temporal, "legal_anchors", lambda *_: pytest.fail("listed"))
    steps, _ = sample_pairs(np.zeros((9000, 1), np.int64), 4, 32, np.random.default_rng(0))
    assert len(set(steps.tolist())) == 32
    assert steps.max() < 8996


def test_episode_ids_by_hand() -> None:
    last_step = np.array([[0, 1], [1, 1], [0, 0], [0, 1]], dtype=np.bool_)
    assert episode_ids(last_step).T.tolist() == [[0, 0, 1, 1], [0, 1, 2, 2]]
    assert episode_ids(last_step).dtype == np.int64
    assert episode_ids(last_step[:0]).shape == (0, 2)


def test_first_and_last_step_serve_as_anchor_and_positive() -> None:
    ids = episode_ids(np.zeros((5, 1), dtype=np.bool_))
    steps, _ = legal_anchors(ids, 4)
    assert steps.tolist() == [0]
    steps, _ = legal_anchors(ids, 5)
    assert steps.tolist() == []


def test_one_step_episodes_have_no_pair() -> None:
    ids = episode_ids(np.ones((6, 3), dtype=np.bool_))
    steps, envs = sample_pairs(ids, 1, 4, np.random.default_rng(0))
    assert steps.shape == envs.shape == (0,)


def test_sample_pairs_are_uniform_and_in_random_order() -> None:
    ids = np.zeros((5, 1), dtype=np.int64)  # 4 legal anchors at horizon 1
    rng = np.random.default_rng(2)
    orders = Counter(tuple(sample_pairs(ids, 1, 2, rng)[0].tolist()) for _ in range(6000))
    assert len(orders) == 12
    assert max(abs(count - 500) for count in orders.values()) < 110  # five standard deviations


def test_sample_pairs_depend_on_the_generator_only() -> None:
    ids = np.zeros((50, 3), dtype=np.int64)
    before = np.random.get_state()  # noqa: NPY002
    first = sample_pairs(ids, (1, 5), 20, np.random.default_rng(3))
    second = sample_pairs(ids, (5, 1), 20, np.random.default_rng(3))
    third = sample_pairs(ids, (5, 1), 20, np.random.default_rng(4))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("n_pairs", [0, -1])
def test_sample_pairs_rejects_too_few_pairs(n_pairs: int) -> None:
    with pytest.raises(ValueError, match="`n_pairs` to be a finite number >= 1"):
        sample_pairs(np.zeros((3, 1), np.int64), 1, n_pairs, np.random.default_rng(0))


@pytest.mark.parametrize("min_gap", [0, 1, 2, 3, 9])
def test_negative_mask_equals_brute_force(min_gap: int) -> None:
    rng = np.random.default_rng(min_gap)
    for _ in range(20):
        steps, envs, episodes = (rng.integers(0, high, 12) for high in (6, 3, 2))
        mask = negative_mask(steps, envs, episodes, min_gap)
        for i, j in itertools.product(range(12), repeat=2):
            same = envs[i] == envs[j] and episodes[i] == episodes[j]
            expected = i == j or not (same and abs(int(steps[i]) - int(steps[j])) < min_gap)
            assert mask[i, j] == expected


def test_negative_mask_by_hand() -> None:
    steps = np.array([0, 0, 1, 0], dtype=np.int64)
    envs = np.array([0, 0, 0, 1], dtype=np.int64)
    episodes = np.zeros(4, dtype=np.int64)
    assert negative_mask(steps, envs, episodes, 0).all()
    twins_only = negative_mask(steps, envs, episodes, 1)
    assert np.argwhere(~twins_only).tolist() == [[0, 1], [1, 0]]
    near = negative_mask(steps, envs, episodes, 2)
    assert np.argwhere(~near).tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]


def test_negative_mask_of_unsigned_steps_does_not_wrap_around() -> None:
    steps = np.array([0, 1], dtype=np.uint8)
    zeros = np.zeros(2, dtype=np.int64)
    mask = negative_mask(steps, zeros, zeros, 2)  # type: ignore[arg-type]
    assert not mask[0, 1]
    assert not mask[1, 0]


def test_negative_mask_rejects_bad_arguments() -> None:
    zeros: IntArray = np.zeros(2, dtype=np.int64)
    with pytest.raises(ValueError, match="`min_gap` to be a finite number >= 0, got -1"):
        negative_mask(zeros, zeros, zeros, -1)
    with pytest.raises(ValueError, match=r"`envs` of shape \[2\]"):
        negative_mask(zeros, zeros[:1], zeros, 1)
    with pytest.raises(ValueError, match=r"`episodes` of shape \[2\]"):
        negative_mask(zeros, zeros, zeros[:1], 1)


def brute_force_distinct(observations: npt.NDArray[np.generic]) -> BoolArray:
    contents = [row.tobytes() for row in observations]
    return np.array(
        [[i == j or a != b for j, b in enumerate(contents)] for i, a in enumerate(contents)]
    )


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 4), (4, 3, 3)])
def test_distinct_mask_equals_brute_force(dtype: type, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for n_kinds in (1, 2, 5, 1000):
        kinds: npt.NDArray[np.generic] = rng.integers(0, 256, (n_kinds, *shape)).astype(dtype)
        observations = kinds[rng.integers(0, n_kinds, 20)]
        assert np.array_equal(distinct_mask(observations), brute_force_distinct(observations))


def test_distinct_mask_tells_equal_sums_apart() -> None:
    first = np.arange(32, dtype=np.uint8)
    swapped = np.concatenate([first[8:16], first[:8], first[16:]])  # the same words, reordered
    wrapped = first.view(np.uint64) + np.array([2**63, 2**63, 0, 0], dtype=np.uint64)
    observations = np.stack([first, swapped, first, wrapped.view(np.uint8), swapped])
    assert len(set(observations.view(np.uint64).sum(axis=1).tolist())) == 1
    assert np.argwhere(~distinct_mask(observations)).tolist() == [[0, 2], [1, 4], [2, 0], [4, 1]]


def test_distinct_mask_compares_bytes_of_any_memory_layout() -> None:
    observations = np.zeros((6, 4, 5), dtype=np.float64)
    observations[1] = -0.0  # equal as a number, other bytes
    observations[2:4] = np.nan  # unequal as numbers, the same bytes
    expected = brute_force_distinct(observations)
    assert np.array_equal(distinct_mask(observations), expected)
    strided = np.asfortranarray(observations)[::-1]
    assert np.array_equal(distinct_mask(strided), expected[::-1, ::-1])


def test_distinct_mask_of_empty_input() -> None:
    assert distinct_mask(np.zeros((0, 3), np.uint8)).shape == (0, 0)
    assert np.array_equal(distinct_mask(np.zeros((3, 0), np.uint8)), np.eye(3, dtype=np.bool_))


def test_distinct_mask_rejects_objects_and_scalars() -> None:
    with pytest.raises(TypeError, match="plain dtype, got object"):
        distinct_mask(np.array([None, None]))
    with pytest.raises(ValueError, match=r"shape \[M, \.\.\.\], got \(\)"):
        distinct_mask(np.array(1))


def test_check_horizons_returns_them_ascending() -> None:
    assert check_horizons(3) == (3,)
    assert check_horizons([4, 1, 2]) == (1, 2, 4)
    assert check_horizons((2, 0), allow_zero=True) == (0, 2)
    horizons = check_horizons([5, 2, np.int64(7)])
    assert horizons == (2, 5, 7)
    assert all(type(horizon) is int for horizon in horizons)


@pytest.mark.parametrize(
    ("horizons", "error", "message"),
    [
        ([], ValueError, "`horizons` to hold at least one integer"),
        ([1, True], TypeError, "`horizons` to hold integers, got True"),
        (True, TypeError, "`horizons` to hold integers, got True"),
        ([1.0], TypeError, "`horizons` to hold integers, got 1.0"),
        ("12", TypeError, "`horizons` to hold integers, got '12'"),
        ([0, 1], ValueError, "`horizons` to be at least 1, got 0"),
        ([2, 1, 2], ValueError, "`horizons` without duplicates"),
    ],
)
def test_check_horizons_rejects(horizons: list[int], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        check_horizons(horizons)


def test_check_horizons_allows_zero_but_nothing_below() -> None:
    with pytest.raises(ValueError, match="`horizons` to be at least 0, got -1"):
        check_horizons([-1], allow_zero=True)


def test_matrices_are_demanded() -> None:
    with pytest.raises(ValueError, match=r"`last_step` of shape \[T, N\]"):
        episode_ids(np.zeros(3, dtype=np.bool_))
    with pytest.raises(ValueError, match=r"`episode_ids` of shape \[T, N\]"):
        legal_anchors(np.zeros(3, dtype=np.int64), 1)
