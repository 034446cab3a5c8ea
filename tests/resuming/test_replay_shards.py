"""The rows on the disk are those of the buffer, whoever added them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from rl_infonce.resuming import replay_shards
from rl_infonce.resuming.replay_shards import (
    ReplayShards,
    UnknownBufferError,
    arrays_of,
    end_last_episode,
    load_replay,
)

N_ROWS = 10
Add = Callable[[int], None]


def empty(n_envs: int = 1, **settings: bool) -> ReplayBuffer:
    return ReplayBuffer(N_ROWS, Box(-9, 9, (1,)), Discrete(2), "cpu", n_envs, **settings)


def adding_to(buffer: ReplayBuffer) -> Add:
    rng = np.random.default_rng(0)

    def add(n_rows: int) -> None:
        for _ in range(n_rows):
            seen, following, rewards = rng.standard_normal((3, buffer.n_envs, 1))
            actions = np.zeros((buffer.n_envs, 1), int)
            dones = np.zeros(buffer.n_envs, bool)
            buffer.add(seen, following, actions, rewards[:, 0], dones, [{}] * buffer.n_envs)

    return add


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_shards, "_BYTES_OF_A_SHARD", 16)  # 4 rows of rewards


@pytest.mark.parametrize("has_timeouts", [True, False])
def test_an_end_that_was_there_stays_as_it_was(has_timeouts: bool) -> None:
    """Rows of four games: one goes on, one is terminal, one timed out, one goes on."""
    buffer = empty(4, handle_timeout_termination=has_timeouts)
    add = adding_to(buffer)
    add(1)
    buffer.dones[0, 1:3] = True
    buffer.timeouts[0, 2] = has_timeouts
    end_last_episode(buffer)
    n_ended = buffer.dones[0] + buffer.timeouts[0]
    assert (n_ended > 0).all()
    is_terminal = buffer.dones[0] * (1 - buffer.timeouts[0])  # as SB3 samples it
    assert is_terminal.tolist() == [0, 1, 0, 0] if has_timeouts else [1, 1, 1, 1]
    add(N_ROWS)
    assert not buffer.timeouts.any(), "of a row that is gone"


def assert_written(shards: ReplayShards, buffer: ReplayBuffer, n_added: int, folder: Path) -> None:
    saved, found = shards.save(buffer, n_added), empty()
    load_replay(found, saved, folder)
    assert (found.pos, found.full) == (buffer.pos, buffer.full)
    n_rows = N_ROWS if buffer.full else buffer.pos
    expected = dict(arrays_of(buffer))
    for name, rows in arrays_of(found):
        np.testing.assert_array_equal(rows[:n_rows], expected[name][:n_rows], name)


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_others_add_are_written_also(seed: int, tmp_path: Path) -> None:
    rng, buffer, shards, n_added = np.random.default_rng(seed), empty(), ReplayShards(tmp_path), 0
    add = adding_to(buffer)
    for _ in range(8):
        n_new, n_of_others = rng.integers(0, [12, N_ROWS]).tolist()
        add(n_new + n_of_others * int(rng.integers(2)))
        n_added += n_new
        assert_written(shards, buffer, n_added, tmp_path)


def test_a_whole_buffer_of_others_is_noticed_while_there_is_room(tmp_path: Path) -> None:
    buffer, shards = empty(), ReplayShards(tmp_path)
    add = adding_to(buffer)
    add(5)
    assert_written(shards, buffer, 5, tmp_path)
    add(2 + N_ROWS)
    assert_written(shards, buffer, 7, tmp_path)


def with_dictionaries() -> DictReplayBuffer:
    space = Dict({"seen": Box(-9, 9, (2,)), "wanted": Box(-9, 9, (1,))})
    return DictReplayBuffer(N_ROWS, space, Discrete(2), "cpu")


@pytest.mark.parametrize("n_rows", [3, N_ROWS + 4])
def test_dictionaries_of_observations_come_back(n_rows: int, tmp_path: Path) -> None:
    buffer, found = with_dictionaries(), with_dictionaries()
    rng = np.random.default_rng(0)
    for _ in range(n_rows):
        seen, following = (
            {"seen": rng.standard_normal((1, 2)), "wanted": rng.standard_normal((1, 1))}
            for _ in range(2)
        )
        buffer.add(seen, following, np.ones((1, 1)), np.ones(1), np.zeros(1), [{}])
    load_replay(found, ReplayShards(tmp_path).save(buffer, n_rows), tmp_path)
    expected = dict(arrays_of(buffer))
    assert {"observations.seen", "next_observations.wanted", "rewards"} <= expected.keys()
    for name, rows in arrays_of(found):
        np.testing.assert_array_equal(rows[:n_rows], expected[name][:n_rows], name)


def test_a_buffer_that_holds_more_than_rows_is_refused(tmp_path: Path) -> None:
    class Own(ReplayBuffer):
        pass

    buffer = Own(N_ROWS, Box(-9, 9, (1,)), Discrete(2), "cpu")
    with pytest.raises(UnknownBufferError, match=r"class ReplayBuffer, .*, got Own, whose rows"):
        ReplayShards(tmp_path).save(buffer, 0)


def test_another_buffer_and_strange_names_are_refused(tmp_path: Path) -> None:
    buffer = empty()
    adding_to(buffer)(5)
    saved = ReplayShards(tmp_path).save(buffer, 5)
    with pytest.raises(ValueError, match=r"with \['actions', .*'observations\.seen'"):
        load_replay(with_dictionaries(), saved, tmp_path)
    for name in ("../rewards.npy", "/rewards.npy"):
        strange = saved | {"shards": {each: [name] for each in saved["shards"]}}
        with pytest.raises(ValueError, match="name of a file inside"):
            load_replay(empty(), strange, tmp_path)


def test_what_is_unchanged_is_not_written_again(tmp_path: Path) -> None:
    buffer, shards = empty(), ReplayShards(tmp_path)
    add = adding_to(buffer)
    add(7)
    shards.save(buffer, 7)
    again = ReplayShards(tmp_path)
    again.adopt(shards.save(buffer, 7))
    former = again.save(buffer, 7)["shards"]["rewards"]
    buffer.rewards[:] = 5
    add(2)
    first, second, third = again.save(buffer, 9)["shards"]["rewards"]
    assert first == former[0]
    assert second != former[1]
    assert "rewards-000002-" in third
