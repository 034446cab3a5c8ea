import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rl_infonce.pretraining import EpisodeFrames, hold_out_episodes, training_and_validation


def frames_of(lengths: tuple[int, ...], used: tuple[int, ...] | None = None) -> EpisodeFrames:
    """Return frames of episodes of the given lengths, of which some are used."""
    ids = np.repeat(np.arange(len(lengths)) * 10, lengths)
    used = tuple(range(len(lengths))) if used is None else used
    rows = np.flatnonzero(np.isin(ids, np.array(used) * 10))
    return EpisodeFrames(np.zeros((len(ids), 1, 2, 2), np.uint8), ids, rows)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_starts_equal_brute_force_on_every_small_case(length: int) -> None:
    for lengths in itertools.chain(*(itertools.product(range(1, 4), repeat=n) for n in (1, 2, 3))):
        for used in itertools.chain(
            *(itertools.combinations(range(len(lengths)), n) for n in (1, 2, 3))
        ):
            frames = frames_of(lengths, used)
            ids = frames.episode_ids
            expected = [
                row
                for row in frames.rows.tolist()
                if row + length <= len(ids) and len(set(ids[row : row + length])) == 1
            ]
            if expected:
                assert frames.starts(length).tolist() == expected
            else:
                with pytest.raises(ValueError, match=f"at least {length} frames, got"):
                    frames.starts(length)


def test_ids_may_be_unsigned() -> None:
    ids: Any = np.array([255, 0, 0, 3, 3, 3], np.uint8)
    frames = EpisodeFrames(np.zeros((6, 1), np.uint8), ids, np.arange(6))
    drawn = frames.others(np.array([0, 1, 2, 4]), np.random.default_rng(0))
    assert drawn[:3].tolist() == [0, 2, 1]
    assert drawn[3] in (3, 5)


def test_others_are_uniform_over_the_rest_of_the_episode() -> None:
    frames = frames_of((1, 4, 2))
    rng = np.random.default_rng(0)
    rows = np.tile(np.arange(7), 3000)
    drawn = frames.others(rows, rng)
    counts = np.zeros((7, 7), int)
    np.add.at(counts, (rows, drawn), 1)
    allowed = [[0], *[[r for r in (1, 2, 3, 4) if r != row] for row in (1, 2, 3, 4)], [6], [5]]
    for row, others in enumerate(allowed):
        assert np.flatnonzero(counts[row]).tolist() == others
        assert abs(counts[row, others] / 3000 - 1 / len(others)).max() < 0.05


def test_episodes_are_held_out_whole() -> None:
    ids = np.repeat(np.arange(10), 3)
    seen = set()
    for seed in range(20):
        train, held_out = hold_out_episodes(ids, np.random.default_rng(seed))
        assert sorted([*train, *held_out]) == list(range(30))
        assert set(ids[train]).isdisjoint(ids[held_out])
        assert len(held_out) == 6
        seen.add(tuple(held_out))
    assert len(seen) > 10
    train, held_out = hold_out_episodes(ids[:6], np.random.default_rng(0))
    assert (len(train), len(held_out)) == (3, 3)


def test_what_shares_a_state_is_held_out_together() -> None:
    lives, games = np.repeat(np.arange(10), 3), np.repeat(np.arange(5), 6)
    images = np.zeros((30, 1, 2, 2), np.uint8)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        train, held_out = training_and_validation(images, lives, rng, group_ids=games)
        assert set(games[train.rows]).isdisjoint(games[held_out.rows])
        assert len(set(lives[held_out.rows])) == 2
        assert set(np.diff(lives[train.rows])) <= {0, 1, 3}, "pairs lie within a life"


def test_what_does_not_fit_is_refused() -> None:
    images = np.zeros((4, 1, 2, 2), np.uint8)
    with pytest.raises(ValueError, match="one after the other, got 2 episodes in 3 pieces"):
        EpisodeFrames(images, np.array([0, 1, 0, 0]), np.arange(4))
    with pytest.raises(TypeError, match="`observations` to be an array of frames, got list"):
        EpisodeFrames([*images], np.zeros(4, int), np.arange(4))
    with pytest.raises(ValueError, match=r"`episode_ids` of shape \[4\], got \(3,\)"):
        EpisodeFrames(images, np.zeros(3, int), np.arange(3))
    with pytest.raises(ValueError, match=r"`labels\['x'\]` of shape \[4\]"):
        EpisodeFrames(images, np.zeros(4, int), np.arange(4), {"x": np.zeros(3, int)})
    for labels in (np.array([0, 1, 2, 256]), np.array([-1, 0, 0, 0])):
        with pytest.raises(ValueError, match=r"`labels\['x'\]` in 0..255"):
            EpisodeFrames(images, np.zeros(4, int), np.arange(4), {"x": labels})
    with pytest.raises(ValueError, match="at least 2 episodes"):
        hold_out_episodes(np.zeros(4, int), np.random.default_rng(0))
    with pytest.raises(TypeError, match="`episode_ids` to hold integers"):
        hold_out_episodes(np.array([0.0, 1.0]), np.random.default_rng(0))
    with pytest.raises(TypeError, match="`rng` to be a numpy"):
        hold_out_episodes(np.arange(2), 0)  # type: ignore[arg-type]


def test_lists_serve_as_ids_rows_and_labels() -> None:
    given: Any = ([0, 0, 1, 1], [0, 1], {"x": [0, 1, 0, 1], "y": torch.arange(4)})
    frames = EpisodeFrames(np.zeros((4, 1, 2, 2), np.uint8), *given)
    assert frames.starts(2).tolist() == [0]
    assert frames.labels["x"][frames.rows].tolist() == [0, 1]
    assert isinstance(frames.labels["y"], np.ndarray)
    held_out = hold_out_episodes([0, 0, 1, 1], np.random.default_rng(0))  # type: ignore[arg-type]
    assert [len(rows) for rows in held_out] == [2, 2]


@pytest.mark.parametrize("rows", [[0, 1], [2, 3, 4], [1], [3], [0, 2], [0, 1, 2, 3]])
def test_rows_that_cut_an_episode_are_refused(rows: list[int]) -> None:
    images, ids = np.zeros((5, 1, 2, 2), np.uint8), np.array([0, 0, 0, 7, 7])
    with pytest.raises(ValueError, match=r"`rows` of whole .* a part of episode [07], cut"):
        EpisodeFrames(images, ids, np.array(rows))


@pytest.mark.parametrize("rows", [[1, 0, 2], [0, 0, 1, 2], [3, 4, 5], [-1, 3, 4]])
def test_rows_out_of_order_or_range_are_refused(rows: list[int]) -> None:
    images, ids = np.zeros((5, 1, 2, 2), np.uint8), np.array([0, 0, 0, 7, 7])
    with pytest.raises(ValueError, match=r"`rows` ascending, of 0\.\.4"):
        EpisodeFrames(images, ids, np.array(rows))
