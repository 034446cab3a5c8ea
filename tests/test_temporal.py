import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rl_infonce import temporal
from rl_infonce.temporal import (
    BoolArray,
    Steps,
    episode_ids,
    far_mask,
    futures_among,
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
        for horizon in range(n_steps + 4):
            steps, envs = legal_anchors(ids, horizon)
            found = list(zip(steps.tolist(), envs.tolist(), strict=True))
            assert found == sorted(brute_force_anchors(last_step, horizon))


LISTED = pytest.mark.parametrize("listed_starts", [0, 4096], ids=["drawn", "listed"])


@LISTED
@pytest.mark.parametrize(("n_steps", "n_envs"), [(4, 2), (7, 1), (2, 4)])
def test_sample_pairs_draw_exactly_the_legal_anchors_on_every_pattern(
    n_steps: int, n_envs: int, listed_starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of plain rows and of rings, at every seam and with rows that are not filled."""
    monkeypatch.setattr(temporal, "_LISTED_STARTS", listed_starts)
    rng = np.random.default_rng(0)
    lone_steps = np.ones((n_steps, 30), np.bool_)  # so that anchors are few among the starts
    for pattern in all_patterns(n_steps, n_envs):
        last_step = np.hstack([pattern, lone_steps])
        n_rows = n_steps + int(rng.integers(3))
        oldest_row = int(rng.integers(n_rows))
        ring = rng.integers(
            99, size=(n_rows, n_envs + 30)
        )  # what is not filled may hold any number
        ring[(np.arange(n_steps) + oldest_row) % n_rows] = episode_ids(last_step)
        for horizon in range(4):
            legal = brute_force_anchors(last_step, horizon)
            for n_pairs in {1, max(len(legal) - 1, 1), len(legal) + 1}:
                drawn = sample_pairs(
                    ring, horizon, n_pairs, rng, oldest_row=oldest_row, n_steps=n_steps
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


@LISTED
def test_sample_pairs_are_uniform_and_in_random_order(
    listed_starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal, "_LISTED_STARTS", listed_starts)
    ids = np.arange(40)[:, None]
    ids[[0, 1, 39]], ids[20:23] = 39, 20  # 4 legal anchors at horizon 1, two of them at the seam
    rng = np.random.default_rng(2)
    draws = (sample_pairs(ids, 1, 2, rng, oldest_row=30) for _ in range(6000))
    orders = Counter(tuple(steps.tolist()) for steps, _ in draws)
    assert len(orders) == 12
    assert max(abs(count - 500) for count in orders.values()) < 110  # five standard deviations


def test_every_start_is_drawn_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal, "legal_anchors", lambda *_: pytest.fail("listed"))
    monkeypatch.setattr(temporal, "_LISTED_STARTS", 0)
    rng = np.random.default_rng(0)
    ids = np.zeros((10, 2), np.int64)
    draws = (sample_pairs(ids, 1, 1, rng) for _ in range(5400))
    counts = Counter((int(steps[0]), int(envs[0])) for steps, envs in draws)
    assert counts.keys() == set(itertools.product(range(9), range(2)))
    assert max(abs(count - 300) for count in counts.values()) < 85  # five standard deviations


@LISTED
def test_without_a_ring_the_first_row_is_the_oldest_step(
    listed_starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal, "_LISTED_STARTS", listed_starts)
    ids = episode_ids(np.random.default_rng(0).random((40, 3)) < 0.2)
    everywhere = np.divmod(np.arange(120), 3)
    calls: list[Callable[..., object]] = [
        lambda **ring: sample_pairs(ids, 2, 4, np.random.default_rng(1), **ring),
        lambda **ring: futures_among(ids, *everywhere, 2, **ring),
    ]
    for call in calls:
        np.testing.assert_equal(call(), call(oldest_row=0, n_steps=40))


def test_sample_pairs_depend_on_the_generator_only() -> None:
    ids = np.zeros((50, 3), dtype=np.int64)
    before = np.random.get_state()  # noqa: NPY002
    first, second, third = (
        sample_pairs(ids, 5, 20, np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(("n_steps", "n_envs"), [(5, 1), (4, 2), (2, 3), (1, 4)])
def test_futures_among_some_observations_equal_brute_force_on_every_pattern(
    n_steps: int, n_envs: int
) -> None:
    rng = np.random.default_rng(0)
    cells = [*itertools.product(range(n_steps), range(n_envs))]
    for last_step in all_patterns(n_steps, n_envs):
        ids = episode_ids(last_step)
        for horizon in range(1, n_steps + 1):
            legal = brute_force_anchors(last_step, horizon)
            chosen = [cells[i] for i in rng.permutation(len(cells))[: rng.integers(len(cells) + 1)]]
            steps, envs = np.array(chosen, dtype=np.int64).reshape(-1, 2).T
            oldest = int(rng.integers(n_steps + 2))  # a ring with two rows that are not filled
            ring = np.roll(np.concatenate([ids, ids[:1], ids[-1:]]), oldest, axis=0)
            has_future, futures, is_future = futures_among(
                ring, steps, envs, horizon, oldest_row=oldest, n_steps=n_steps
            )
            for i, (step, env) in enumerate(chosen):
                later = step + horizon, env
                is_there = (step, env) in legal and later in chosen
                assert has_future[i] == ((step, env) in legal)
                assert futures[i] == (chosen.index(later) if is_there else -1)
                assert is_future[i] == ((step - horizon, env) in legal)


@pytest.mark.parametrize("min_gap", [0, 1, 2, 3, 9])
def test_far_mask_equals_brute_force(min_gap: int) -> None:
    rng = np.random.default_rng(min_gap)

    def some(n: int) -> Steps:
        return Steps(*(rng.integers(0, high, n) for high in (6, 3, 2)))

    for _ in range(20):
        anchors, others = some(7), some(12)
        mask = far_mask(anchors, others, min_gap)
        for i, j in itertools.product(range(7), range(12)):
            one, other = anchors.at(np.array([i])), others.at(np.array([j]))
            same = one[1:] == other[1:]
            assert mask[i, j] != (same and abs(int(one.steps[0] - other.steps[0])) < min_gap)


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


def test_negative_mask_of_unsigned_steps_does_not_wrap_around() -> None:
    steps = np.array([0, 1], dtype=np.uint8)
    zeros = np.zeros(2, dtype=np.int64)
    mask = negative_mask(steps, zeros, zeros, 2)  # type: ignore[arg-type]
    assert not mask[0, 1]
    assert not mask[1, 0]


@pytest.mark.parametrize(
    ("steps", "dtype", "is_far"), [([0, 1], np.uint8, False), ([-100, 100], np.int8, True)]
)
def test_far_mask_of_small_integers_does_not_wrap_around(
    steps: list[int], dtype: type[np.generic], is_far: bool
) -> None:
    zeros = np.zeros(2, dtype=np.int64)
    where = Steps(np.array(steps, dtype=dtype), zeros, zeros)
    assert far_mask(where, where, 57).tolist() == [[False, is_far], [is_far, False]]


def test_the_ring_is_given_by_name() -> None:
    for function in (sample_pairs, futures_among):
        parameters = inspect.signature(function).parameters
        kinds = {parameters[name].kind for name in ("oldest_row", "n_steps")}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}


ROW, ZEROS = np.zeros(3, np.int64), np.zeros(2, np.int64)
MANY = np.zeros((5000, 1), np.int64)  # so many that no anchors are listed
PLACES = Steps(ZEROS, ZEROS, ZEROS)
RNG = np.random.default_rng(0)
NO_HORIZON = "`horizon` to be a finite number >= 0, got -1"
NO_PAIRS = "`n_pairs` to be a finite number >= 1"
TOO_LONG = "`n_steps` to be a finite number >= 0 and <= 3, got 4"
NO_GAP = "`min_gap` to be a finite number >= 0, got -1"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: episode_ids(ROW > 0), ValueError, r"`last_step` of shape \[T, N\]"),
        (lambda: legal_anchors(ROW, 1), ValueError, r"`episode_ids` of shape \[T, N\]"),
        (lambda: legal_anchors(ROW[:, None], -1), ValueError, NO_HORIZON),
        (lambda: sample_pairs(MANY, -1, 2, RNG), ValueError, NO_HORIZON),
        (lambda: sample_pairs(ROW[:, None], 1.0, 2, RNG), TypeError, "`horizon`.*got 1.0"),  # type: ignore[arg-type]
        (lambda: sample_pairs(ROW[:, None], 1, 0, RNG), ValueError, NO_PAIRS),
        (lambda: sample_pairs(ROW[:, None], 1, -1, RNG), ValueError, NO_PAIRS),
        (lambda: sample_pairs(ROW[:, None], 1, 2, RNG, n_steps=-1), ValueError, "`n_steps`.*-1"),
        (lambda: sample_pairs(ROW[:, None], 1, 2, RNG, n_steps=4), ValueError, TOO_LONG),
        (lambda: futures_among(ROW[:, None], ROW, ROW, 1, n_steps=4), ValueError, TOO_LONG),
        (lambda: far_mask(PLACES, PLACES, -1), ValueError, NO_GAP),
        (lambda: negative_mask(np.arange(2), ZEROS, ZEROS, -1), ValueError, NO_GAP),
        (lambda: negative_mask(ZEROS, ROW, ZEROS, 1), ValueError, r"`envs` of shape \[2\]"),
        (lambda: negative_mask(ZEROS, ZEROS, ROW, 1), ValueError, r"`episodes` of shape \[2\]"),
        (lambda: sample_pairs(ROW[:, None], 1, 2, 0), TypeError, "`rng` to be a .*, got 0"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
