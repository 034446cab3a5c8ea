"""Hand-driven rings: the incremental episode index against the record of what was added."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

from rl_infonce.sb3 import episode_index
from rl_infonce.sb3.buffers import ExperienceReader, UnreadableBufferError
from rl_infonce.sb3.experience import Experience
from tests.further import further
from tests.sb3.fakes import legal_anchors, stamped_vec_env

SPACE = spaces.Box(0, 255, (4,), np.uint8)


class Player:
    """Plays the part of an off-policy algorithm: adds rows, counts steps, starts `learn()`s."""

    def __init__(
        self, n_rows: int, n_envs: int, *, visible: bool = True, optimized: bool = False
    ) -> None:
        self.n_envs, self.visible = n_envs, visible
        self.rng = np.random.default_rng(n_rows * 10 + n_envs)
        self.replay_buffer: Any = ReplayBuffer(
            n_rows * n_envs,
            SPACE,
            spaces.Discrete(2),
            n_envs=n_envs,
            optimize_memory_usage=optimized,
            handle_timeout_termination=False,
        )
        self.num_timesteps = self._num_timesteps_at_start = 0
        self.start_time = 0
        self.n_episodes = 0
        self.episodes: npt.NDArray[np.int64] = np.zeros(n_envs, dtype=np.int64)
        self.time: npt.NDArray[np.int64] = np.zeros(n_envs, dtype=np.int64)
        self.record: list[npt.NDArray[np.int64]] = []  # episode numbers [N] of every row added

    def get_vec_normalize_env(self) -> None:
        return None

    def learn(self) -> None:
        self.start_time += 1
        self.num_timesteps = 0
        self.reset(np.ones(self.n_envs, dtype=np.bool_))

    def reset(self, over: npt.NDArray[np.bool_]) -> None:
        for env in np.flatnonzero(over):
            self.n_episodes += 1
            self.episodes[env] = self.n_episodes
            self.time[env] = 0

    def images(self) -> npt.NDArray[np.uint8]:
        if not self.visible:
            return np.zeros((self.n_envs, 4), dtype=np.uint8)
        stamps = np.stack([self.episodes, self.time], axis=1).astype(">u2")
        return stamps.view(np.uint8).reshape(self.n_envs, 4)

    def add(self, done_probability: float = 0.15) -> None:
        before = self.images()
        self.record.append(self.episodes.copy())
        self.time += 1
        done = self.rng.random(self.n_envs) < done_probability
        action = self.rng.integers(0, 2, (self.n_envs, 1)) * self.visible
        infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
        self.replay_buffer.add(before, self.images(), action, np.zeros(self.n_envs), done, infos)
        self.num_timesteps += self.n_envs
        self.reset(done)

    def play(self, n_rows: int, done_probability: float = 0.15) -> None:
        for _ in range(n_rows):
            self.add(done_probability)

    def read(self, reader: ExperienceReader) -> Experience:
        return reader.read(self)  # type: ignore[arg-type]

    def legal(self, horizon: int) -> list[tuple[int, int]]:
        n_rows = self.replay_buffer.buffer_size
        dropped = self.replay_buffer.optimize_memory_usage and len(self.record) >= n_rows
        newest = self.record[-n_rows:][int(dropped) :]
        return [
            (step, env)
            for step in range(len(newest) - horizon)
            for env in range(self.n_envs)
            if newest[step][env] == newest[step + horizon][env]
        ]


def played(n_rows: int, n_envs: int, n_played: int, **look: Any) -> tuple[Player, ExperienceReader]:
    """Return a player in its first `learn()` and a reader that has read it."""
    player, reader = Player(n_rows, n_envs, **look), ExperienceReader()
    player.learn()
    player.play(n_played, 0.0 if look else 0.15)
    player.read(reader)
    return player, reader


def found(experience: Experience, horizon: int) -> list[tuple[int, int]]:
    steps, envs = legal_anchors(experience, horizon)
    return list(zip(steps.tolist(), envs.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("n_envs", [1, further(2), 3])
@pytest.mark.parametrize("n_rows", [1, 2, further(3), 5, further(8), 13])
def test_incremental_index_equals_the_record_and_a_rebuild(
    n_rows: int, n_envs: int, optimized: bool
) -> None:
    player = Player(n_rows, n_envs, optimized=optimized)
    rng, reader = np.random.default_rng(7), ExperienceReader()
    player.learn()
    for _ in range(250):
        if rng.random() < 0.15:
            if optimized and player.record:
                # Stable-Baselines3 marks this border itself in optimised rings.
                player.replay_buffer.dones[player.replay_buffer.pos - 1] = True
            player.learn()
        player.play(rng.choice([0, 1, 1, 2, 4, n_rows, 3 * n_rows]))
        for horizon in (0, 1, 2):
            assert found(player.read(reader), horizon) == player.legal(horizon)
            assert found(player.read(ExperienceReader()), horizon) == player.legal(horizon)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_rows", [2, 5, 13])
def test_borders_without_a_trace_in_the_images_are_remembered(n_rows: int, n_envs: int) -> None:
    player = Player(n_rows, n_envs, visible=False)
    rng, reader = np.random.default_rng(8), ExperienceReader()
    for _ in range(200):
        player.learn()
        for _ in range(rng.integers(1, 4)):
            # Readers see every training, so the last rows of a learn() have been read.
            player.play(rng.choice([1, 2, 3 * n_rows]), 0.1)
            for horizon in (1, 2):
                assert found(player.read(reader), horizon) == player.legal(horizon)


def test_a_read_costs_the_new_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    player, reader = Player(1000, 1), ExperienceReader()
    player.learn()
    player.play(1500)
    compared: list[int] = []
    breaks = episode_index._breaks

    def counting_breaks(ring: Any, rows: Any) -> Any:
        compared.append(len(rows))
        return breaks(ring, rows)

    monkeypatch.setattr(episode_index, "_breaks", counting_breaks)
    player.read(reader)
    ids = reader._index.ids
    for _ in range(30):
        player.add()
        player.read(reader)
    assert reader._index.ids is ids  # extended, never rebuilt
    assert compared == [1000] + [1] * 30
    player.learn()
    player.play(4)
    player.read(reader)
    assert reader._index.ids is ids
    assert compared[-1] == 4


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("stores_more", [True, False])
def test_rows_that_are_not_the_next_step_make_no_pairs(stores_more: bool, n_envs: int) -> None:
    player, reader = Player(50, n_envs), ExperienceReader()
    add = player.replay_buffer.add

    def add_mirrored_too(before: Any, after: Any, *rest: Any) -> None:
        add(before, after, *rest)
        add(255 - before, 255 - after, *rest)

    def add_every_other(*row: Any) -> None:
        if len(player.record) % 2:
            add(*row)

    player.replay_buffer.add = add_mirrored_too if stores_more else add_every_other
    player.learn()
    for _ in range(20):
        player.add(0.0)
        assert not found(player.read(reader), 1)
    assert player.replay_buffer.pos == (40 if stores_more else 10)


def test_a_wrong_newest_row_forces_a_rebuild() -> None:
    player, reader = played(10, 2, 6)
    ids = reader._index.ids
    player.replay_buffer.reset()
    player.learn()
    del player.record[:]
    player.play(8)
    assert found(player.read(reader), 1) == player.legal(1)
    assert reader._index.ids is not ids


def test_rows_added_by_hand_are_compared() -> None:
    player, reader = played(50, 2, 10)
    for _ in range(3):  # demonstrations: rows that no step of this learn() counted
        player.reset(np.ones(2, dtype=np.bool_))
        for _ in range(4):
            player.add()
            player.num_timesteps -= 2
    assert found(player.read(reader), 1) == player.legal(1)


def test_rows_beyond_the_count_of_a_learn_are_compared() -> None:
    player = Player(50, 2)
    for _ in range(2):
        player.learn()
        player.play(6)
    player.num_timesteps = 80  # forty rows, of which the buffer put in place holds none
    assert found(player.read(ExperienceReader()), 1) == player.legal(1)


@pytest.mark.parametrize("replaced", ["observations", "dones"])
def test_a_replaced_array_forces_a_rebuild_though_its_newest_row_looks_the_same(
    replaced: str,
) -> None:
    player, reader = played(10, 1, 6, visible=False)
    assert len(found(player.read(reader), 1)) == 5
    buffer = player.replay_buffer
    setattr(buffer, replaced, getattr(buffer, replaced).copy())
    buffer.dones[2] = 1.0
    assert found(player.read(reader), 1) == [(0, 0), (1, 0), (3, 0), (4, 0)]


@pytest.mark.parametrize(
    ("n_before", "n_after", "new_learn"), [(13, 6, False), (13, 6, True), (3, 6, True)]
)
def test_an_emptied_ring_forces_a_rebuild_though_its_newest_row_looks_the_same(
    n_before: int, n_after: int, new_learn: bool
) -> None:
    player, reader = played(10, 1, n_before, visible=False)
    player.replay_buffer.reset()
    del player.record[:]
    if new_learn:
        player.learn()
    for step in range(n_after):
        if step == 2:
            player.reset(np.ones(1, dtype=np.bool_))
            player.replay_buffer.dones[1] = 1.0
        player.add(0.0)
    assert found(player.read(reader), 1) == player.legal(1)


def filled(n_rows: int, done_probability: float) -> tuple[Player, Experience]:
    player = Player(n_rows, 1)
    player.learn()
    player.play(n_rows + 7, done_probability)
    return player, player.read(ExperienceReader())


def test_no_legal_anchor_gives_an_empty_batch() -> None:
    player, experience = filled(20, 1.0)
    for horizon in (1, 19, 20, 99):
        steps, envs = experience.sample_anchors(horizon, 5, np.random.default_rng(0))
        assert steps.shape == envs.shape == (0,)
        assert experience.observations(steps, envs).shape == (0, 4)
        assert experience.actions(steps, envs).shape == (0,)
    empty = Player(20, 2).read(ExperienceReader())
    assert empty.n_steps == 0
    assert found(empty, 0) == []
    assert player.replay_buffer.full


def test_gathered_arrays_are_copies_of_any_shape() -> None:
    player, experience = filled(20, 0.1)
    steps, envs = np.arange(6).reshape(2, 3), np.zeros((2, 3), dtype=np.int64)
    observations = experience.observations(steps, envs)
    assert observations.shape == (2, 3, 4)
    assert observations.dtype == np.uint8
    assert experience.episodes(steps, envs).shape == (2, 3)
    actions = experience.actions(steps, envs)
    assert actions.shape == (2, 3)
    kept = player.replay_buffer.observations.copy(), player.replay_buffer.actions.copy()
    observations[:], actions[:] = 77, 77
    assert np.array_equal(player.replay_buffer.observations, kept[0])
    assert np.array_equal(player.replay_buffer.actions, kept[1])


@pytest.mark.parametrize("steps", [[-1], [20], [0, 25]])
def test_steps_out_of_range_are_refused(steps: list[int]) -> None:
    _, experience = filled(20, 0.1)
    at, envs = np.array(steps), np.zeros(len(steps), dtype=np.int64)
    for method in (experience.episodes, experience.observations, experience.actions):
        with pytest.raises(IndexError, match=r"`steps` in \[0, 20\)"):
            method(at, envs)


def refuse(buffer: Any, message: str, *, rollout: bool = False) -> None:
    algorithm = Player(4, 1)
    name = "rollout_buffer" if rollout else "replay_buffer"
    setattr(algorithm, name, buffer)
    with pytest.raises(UnreadableBufferError, match=message):
        algorithm.read(ExperienceReader())


def test_buffers_without_plain_arrays_are_refused() -> None:
    class CompressedBuffer(ReplayBuffer):
        pass

    buffer: Any = CompressedBuffer(4, SPACE, spaces.Discrete(2))
    buffer.observations = [b"zip"] * 4
    refuse(buffer, r"Cannot read CompressedBuffer: .*`observations` .*\(4, 1, 4\), got list")
    buffer.observations = np.zeros((4, 1, 5), dtype=np.uint8)
    refuse(buffer, r"`observations` to be an array of shape \(4, 1, 4\), got \(4, 1, 5\)")
    buffer = ReplayBuffer(4, SPACE, spaces.Discrete(2))
    buffer.dones = None
    refuse(buffer, r"Cannot read ReplayBuffer: .*`dones` .*\(4, 1\), got NoneType")
    refuse(
        SimpleNamespace(observations=np.zeros(3)), "SimpleNamespace: expected attributes .*dones"
    )


def test_rollouts_without_plain_arrays_are_refused() -> None:
    buffer: Any = RolloutBuffer(4, SPACE, spaces.Discrete(2), n_envs=2)
    buffer.observations = np.zeros((4, 3, 4), dtype=np.uint8)
    refuse(buffer, r"Cannot read RolloutBuffer: .*\(4, 2, 4\), got \(4, 3, 4\)", rollout=True)
    buffer.episode_starts = np.zeros(8)
    refuse(buffer, r"`episode_starts` .*\(4, 2\), got \(8,\)", rollout=True)
    refuse(SimpleNamespace(pos=1), "SimpleNamespace: .*episode_starts", rollout=True)


def test_a_reader_keeps_neither_algorithm_nor_buffer_alive() -> None:
    model = DQN(
        "MlpPolicy",
        stamped_vec_env(1),
        buffer_size=20,
        learning_starts=99,
        policy_kwargs={"net_arch": [4]},
    )
    model.learn(30)
    reader = ExperienceReader()
    reader.read(model)
    alive = weakref.ref(model), weakref.ref(model.replay_buffer)
    del model
    gc.collect()
    assert alive[0]() is None
    assert alive[1]() is None
