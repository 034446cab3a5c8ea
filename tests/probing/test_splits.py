import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_infonce.probing import (
    Split,
    drop_low_entropy,
    drop_seen_frames,
    entropy,
    frame_digests,
    split_episodes,
)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=3, max_size=12),
    fractions=st.tuples(*[st.floats(0.01, 0.33)] * 3),
    seed=st.integers(0, 99),
    shuffle=st.booleans(),
)
def test_no_episode_is_in_two_parts_and_none_is_empty(
    lengths: list[int], fractions: tuple[float, ...], seed: int, shuffle: bool
) -> None:
    rng = np.random.default_rng(seed)
    names = rng.permutation(1000)[: len(lengths)] - 500
    ids = rng.permutation(np.repeat(names, lengths))
    split = split_episodes(ids, rng, fractions=fractions, shuffle=shuffle)
    episodes = [set(ids[rows].tolist()) for rows in split]
    for one, other in itertools.combinations(episodes, 2):
        assert not one & other
    for rows, part in zip(split, episodes, strict=True):
        assert part
        assert rows.dtype == np.int64
        assert rows.tolist() == [row for row in range(len(ids)) if ids[row] in part]


@pytest.mark.parametrize(
    ("n_episodes", "sizes"), [(3, (1, 1, 1)), (4, (2, 1, 1)), (10, (7, 1, 2)), (100, (70, 10, 20))]
)
def test_split_sizes_by_hand(n_episodes: int, sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    assert tuple(map(len, split_episodes(np.arange(n_episodes), rng))) == sizes
    with_leftovers = split_episodes(np.arange(10), rng, fractions=(0.2, 0.2, 0.2))
    assert [len(rows) for rows in with_leftovers] == [2, 2, 2]


def test_published_order_and_real_shuffle() -> None:
    ids = np.repeat([9, 2, 5, 7, 1, 3, 8, 0, 4, 6], 2)
    ordered = split_episodes(ids, np.random.default_rng(0), shuffle=False)
    assert [rows.tolist() for rows in ordered] == [list(range(14)), [14, 15], [16, 17, 18, 19]]
    held_out = {
        episode
        for seed in range(40)
        for episode in ids[split_episodes(ids, np.random.default_rng(seed)).test].tolist()
    }
    assert held_out == set(range(10))
    first, again = (split_episodes(ids, np.random.default_rng(5)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_too_few_episodes_say_how_many_are_needed() -> None:
    with pytest.raises(ValueError, match=r"at least 3 episodes.*got 2 in 9 frames"):
        split_episodes(np.repeat([0, 1], [4, 5]), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ((0.7, 0.2, 0.2), r"sum to at most 1, got \(0.7, 0.2, 0.2\) with the sum 1.1"),
        ((0.7, 0.0, 0.3), "`fractions` to be a finite number > 0, got 0.0"),
        ((0.7, 0.3), "for training, validation and test, got 2 numbers"),
    ],
)
def test_fractions_that_do_not_fit(fractions: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_episodes(np.arange(10), np.random.default_rng(0), fractions=fractions)


def test_episode_ids_that_are_not_integers() -> None:
    with pytest.raises(TypeError, match="`episode_ids` to hold integers, got float64"):
        split_episodes(np.arange(10.0), np.random.default_rng(0))  # type: ignore[arg-type]


def test_a_seed_is_no_generator() -> None:
    with pytest.raises(TypeError, match=r"`rng` to be a numpy\.random\.Generator, got 0\. Pass"):
        split_episodes(np.arange(10), 0)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=12), st.integers(0, 99))
def test_seen_frames_leave_the_test_part_only(digests: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).permutation(len(digests))
    cut = len(rows) // 3
    split = Split(np.sort(rows[:cut]), np.sort(rows[cut : 2 * cut]), np.sort(rows[2 * cut :]))
    found = drop_seen_frames(split, np.array(digests, np.uint64))
    seen = {digests[row] for row in [*split.train, *split.validation]}
    assert found.test.tolist() == [row for row in split.test if digests[row] not in seen]
    assert found.train is split.train
    assert found.validation is split.validation


def test_digests_are_equal_exactly_where_frames_are() -> None:
    rng = np.random.default_rng(0)
    distinct = rng.integers(0, 256, (300, 1, 5, 7)).astype(np.uint8)
    which = rng.integers(0, 300, 700)  # more than one block is read
    digests = frame_digests(distinct[which])
    assert digests.dtype == np.uint64
    np.testing.assert_array_equal(
        digests[:, None] == digests[None, :], which[:, None] == which[None, :]
    )
    transposed = np.asfortranarray(distinct)
    np.testing.assert_array_equal(frame_digests(transposed), frame_digests(distinct))


def test_entropy_in_nats_by_hand() -> None:
    assert entropy(np.array([3, 3, 3])) == 0.0
    assert math.copysign(1, entropy(np.array([3, 3, 3]))) == 1
    assert entropy(np.array([0, 1, 2, 3] * 5)) == pytest.approx(math.log(4))
    by_hand = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy(np.array([9, 200, 200, 200])) == pytest.approx(by_hand)
    assert entropy(np.array([])) == 0.0


def test_low_entropy_is_judged_by_the_given_rows_with_a_reason() -> None:
    labels = {"moves": np.array([1, 2, 1, 2, 5, 5]), "late": np.array([7, 7, 7, 7, 1, 2])}
    kept, not_probed = drop_low_entropy(labels, np.arange(4))
    assert list(kept) == ["moves"]
    assert not_probed == {"late": "entropy of 0.000 nats is below 0.6 in 4 frames"}
    assert set(drop_low_entropy(labels, np.arange(6))[0]) == {"moves", "late"}
    assert set(drop_low_entropy(labels, np.arange(4), threshold=0)[0]) == {"moves", "late"}
    with pytest.raises(ValueError, match="`rows` to judge the variables by, got none"):
        drop_low_entropy(labels, np.arange(0))
