"""Real algorithms on stamped environments: every view is right and complete at every read."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import ARS, QRDQN, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rl_infonce.sb3.buffers import ExperienceReader, UnreadableBufferError
from rl_infonce.sb3.experience import Experience
from tests.sb3.fakes import (
    StampedDictEnv,
    StampedEnv,
    decode,
    is_stamped,
    legal_anchors,
    stamped_vec_env,
)

HORIZONS = (0, 1, 3)


def small(**changes: Any) -> dict[str, Any]:
    """Make keyword arguments of a small policy; SB3 writes into the dictionary it is given."""
    return {"policy_kwargs": {"net_arch": [8], **changes}}


torch.set_num_threads(1)


class Watcher(BaseCallback):
    """Records every stored row and compares the view with the record before each training."""

    def __init__(self, observation_key: str | None = None) -> None:
        super().__init__()
        self.reader = ExperienceReader(observation_key)
        self.observation_key = observation_key
        self.rows: list[npt.NDArray[np.int64]] = []  # of [3, N]: env, episode, time
        self.stored_actions: list[npt.NDArray[Any]] = []
        self.severed: set[int] = set()  # rows that are not paired with the row before them
        self.stop_at: int | None = None
        self.n_compared = 0

    def _on_training_start(self) -> None:
        if self.model._num_timesteps_at_start > 0:
            self.severed |= {len(self.rows), len(self.rows) + 1}

    def _on_step(self) -> bool:
        if len(self.rows) == self.stop_at:
            return False
        last: Any = self.model._last_obs
        if self.model.get_vec_normalize_env() is not None:
            last = getattr(self.model, "_last_original_obs", last)
        image = last[self.observation_key] if isinstance(last, dict) else last
        assert image is not None
        self.rows.append(np.stack(decode(image)))
        executed = self.locals.get("clipped_actions", self.locals["actions"])
        self.stored_actions.append(self.locals.get("buffer_actions", executed).copy())
        return True

    def _on_rollout_end(self) -> None:
        self.compare(self.reader.read(self.model))

    def compare(self, experience: Experience) -> None:
        n_steps, n_envs = experience.n_steps, experience.n_envs
        assert n_steps == self.expected_steps()
        newest = np.array(self.rows[len(self.rows) - n_steps :])  # [T, 3, N]
        steps, envs = np.indices((n_steps, n_envs))
        images = experience.observations(steps, envs)
        if is_stamped(images):
            assert np.array_equal(np.stack(decode(images), axis=1), newest)
        actions = np.array(self.stored_actions[len(self.rows) - n_steps :])
        np.testing.assert_allclose(experience.actions(steps, envs), actions, rtol=0, atol=1e-6)
        for horizon in HORIZONS:
            legal = set(
                zip(*map(np.ndarray.tolist, legal_anchors(experience, horizon)), strict=True)
            )
            assert legal == self.brute_force(newest, horizon)
            drawn = experience.sample_anchors(horizon, 7, np.random.default_rng(len(self.rows)))
            assert len(drawn[0]) == min(7, len(legal))
            assert len(set(zip(*map(np.ndarray.tolist, drawn), strict=True)) & legal) == len(
                drawn[0]
            )
            self.n_compared += len(legal)

    def expected_steps(self) -> int:
        model: Any = self.model
        buffer = getattr(model, "rollout_buffer", None)
        if buffer is not None:
            return int(buffer.buffer_size)
        buffer = model.replay_buffer
        dropped = buffer.optimize_memory_usage and len(self.rows) >= buffer.buffer_size
        return min(len(self.rows), int(buffer.buffer_size)) - int(dropped)

    def brute_force(self, newest: npt.NDArray[np.int64], horizon: int) -> set[tuple[int, int]]:
        n_steps, _, n_envs = newest.shape
        before = len(self.rows) - n_steps
        shift = np.array([0, 0, horizon])  # the same env and episode, `horizon` steps later
        return {
            (step, env)
            for step in range(n_steps - horizon)
            for env in range(n_envs)
            if np.array_equal(newest[step + horizon, :, env], newest[step, :, env] + shift)
            and not self.severed & set(range(before + step + 1, before + step + horizon + 1))
        }


class FlatteningWatcher(Watcher):
    """Also compares after `get()` flattened the rollout, and after `reset()` emptied it."""

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        before = self.reader.read(model)
        self.compare(before)
        next(model.rollout_buffer.get(4))
        assert model.rollout_buffer.generator_ready
        self.compare(self.reader.read(model))
        self.compare(before)


def n_pairs_apart(experience: Experience, horizon: int) -> int:
    """Count the legal pairs; fail unless each is `horizon` steps of one episode apart."""
    steps, envs = legal_anchors(experience, horizon)
    anchors = decode(experience.observations(steps, envs))
    positives = decode(experience.observations(steps + horizon, envs))
    assert np.array_equal(anchors.time + horizon, positives.time)
    assert np.array_equal(anchors.episode, positives.episode)
    return len(steps)


ONE_EPOCH = {"n_steps": 13, "batch_size": 13, "n_epochs": 1}
ON_POLICY: list[tuple[type[Any], str, dict[str, Any]]] = [
    (PPO, "MlpPolicy", ONE_EPOCH),
    (A2C, "MlpPolicy", {"n_steps": 7}),
    (MaskablePPO, "MlpPolicy", ONE_EPOCH),
    (RecurrentPPO, "MlpLstmPolicy", ONE_EPOCH | small(lstm_hidden_size=8)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "policy", "kwargs"), ON_POLICY, ids=["ppo", "a2c", "maskable", "recurrent"]
)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_rollouts_before_and_after_get(
    algorithm: type[Any], policy: str, kwargs: dict[str, Any], n_envs: int
) -> None:
    model = algorithm(policy, stamped_vec_env(n_envs), seed=0, **(small() | kwargs))
    watcher = FlatteningWatcher()
    for _ in range(2):
        model.learn(3 * n_envs * kwargs["n_steps"], callback=watcher)
    assert watcher.n_compared > 100


def test_a_rollout_view_outlives_get_and_reset() -> None:
    model = PPO("MlpPolicy", stamped_vec_env(2), n_steps=12, batch_size=12, n_epochs=1, **small())
    watcher = Watcher()
    model.learn(24, callback=watcher)
    n_pairs = watcher.n_compared
    experience = ExperienceReader().read(model)
    watcher.compare(experience)
    model.rollout_buffer.reset()
    watcher.compare(experience)
    assert watcher.n_compared == 3 * n_pairs > 0


def test_a_rollout_in_progress_shows_only_its_written_rows() -> None:
    model = PPO("MlpPolicy", stamped_vec_env(2), n_steps=12, batch_size=12, n_epochs=1, **small())
    reader, seen = ExperienceReader(), []

    class ReadEachStep(BaseCallback):
        def _on_step(self) -> bool:
            experience = reader.read(self.model)
            seen.append(experience.n_steps)
            n_pairs_apart(experience, 1)
            return True

    model.learn(48, callback=ReadEachStep())
    assert seen == [*range(12), *range(12)]


OFF_POLICY = [
    pytest.param(DQN, {}, 1, id="dqn-1"),
    pytest.param(DQN, {}, 3, id="dqn-3"),
    pytest.param(QRDQN, {}, 3, id="qrdqn-3"),
    pytest.param(SAC, {}, 1, id="sac-1"),
    pytest.param(SAC, {}, 3, id="sac-3"),
    pytest.param(DQN, {"n_steps": 3}, 3, id="nstep"),
    pytest.param(DQN, {"optimize_memory_usage": True}, 1, id="dqn-optimized-1"),
    pytest.param(DQN, {"optimize_memory_usage": True}, 3, id="dqn-optimized-3"),
    pytest.param(SAC, {"optimize_memory_usage": True}, 1, id="sac-optimized-1"),
]


def off_policy(algorithm: type[Any], n_envs: int = 2, env: Any = None, **kwargs: Any) -> Any:
    if kwargs.get("optimize_memory_usage"):
        kwargs["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    env = env or stamped_vec_env(n_envs, continuous=algorithm is SAC)
    settings = {"buffer_size": 29 * n_envs, "learning_starts": 4, "batch_size": 4, "train_freq": 2}
    return algorithm("MlpPolicy", env, seed=0, **(small() | settings | kwargs))


def either(algorithm: type[Any], lengths: tuple[int, int], *, n_steps: int) -> Any:
    env = stamped_vec_env(2, lengths=lengths)
    if algorithm is DQN:
        return off_policy(DQN, env=env)
    return PPO("MlpPolicy", env, n_steps=n_steps, batch_size=20, n_epochs=1, **small())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer")
@pytest.mark.parametrize(("algorithm", "kwargs", "n_envs"), OFF_POLICY)
def test_replay_rings(algorithm: type[Any], kwargs: dict[str, Any], n_envs: int) -> None:
    model, watcher = off_policy(algorithm, n_envs, **kwargs), Watcher()
    model.learn(100 * n_envs, callback=watcher)  # laps the ring of 29 rows
    assert isinstance(model.replay_buffer, NStepReplayBuffer) == ("n_steps" in kwargs)
    model.learn(20 * n_envs, callback=watcher)  # resets within a lap
    model.learn(20 * n_envs, callback=watcher)
    assert watcher.n_compared > 1000


@pytest.mark.parametrize("n_envs", [1, 3])
def test_repeated_learn_cuts_unfinished_episodes(n_envs: int) -> None:
    env = stamped_vec_env(n_envs, lengths=(1000, 1000))
    model, watcher = off_policy(DQN, env=env, buffer_size=1000 * n_envs), Watcher()
    for _ in range(5):
        model.learn(20 * n_envs, callback=watcher)
    steps, _ = legal_anchors(watcher.reader.read(model), 3)
    assert len(steps) == 5 * 17 * n_envs


def test_learns_without_a_read_are_found_by_their_observations() -> None:
    model = off_policy(DQN, env=stamped_vec_env(2, lengths=(50, 50)), buffer_size=400)
    watcher, quiet = Watcher(), Watcher()
    quiet.rows, quiet.stored_actions = watcher.rows, watcher.stored_actions
    quiet.compare = lambda experience: None  # type: ignore[method-assign]
    for learner in (quiet, quiet, watcher, quiet, quiet, watcher):
        model.learn(24, callback=learner)
    assert watcher.n_compared > 0


def test_a_view_read_inside_a_step_leaves_no_wrong_pair_behind() -> None:
    class EagerWatcher(Watcher):
        def _on_step(self) -> bool:
            self.reader.read(self.model)
            return super()._on_step()

        def compare(self, experience: Experience) -> None:
            self.n_compared += n_pairs_apart(experience, 2)

    model, watcher = off_policy(DQN, env=stamped_vec_env(2, lengths=(5, 90))), EagerWatcher()
    for _ in range(6):
        model.learn(26, callback=watcher)
    assert watcher.n_compared > 100


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("algorithm", [DQN, PPO])
def test_set_env_cuts(algorithm: type[Any], reset: bool) -> None:
    model, watcher = either(algorithm, (30, 90), n_steps=20), Watcher()
    if algorithm is PPO:
        watcher.expected_steps = lambda: 20  # type: ignore[method-assign]
    model.learn(40, callback=watcher)
    other = stamped_vec_env(2, lengths=(30, 90))
    other.reset()
    model.set_env(other, force_reset=reset)
    model.learn(40, callback=watcher, reset_num_timesteps=False)
    model.set_env(stamped_vec_env(2, lengths=(30, 90)))
    model.learn(40, callback=watcher)
    assert watcher.n_compared > 200


@pytest.mark.parametrize("algorithm", [DQN, PPO])
def test_a_step_swallowed_by_a_stopping_callback_is_no_pair(algorithm: type[Any]) -> None:
    model, watcher = either(algorithm, (60, 90), n_steps=10), Watcher()
    watcher.stop_at = 15
    model.learn(200, callback=watcher)
    assert len(watcher.rows) == 15
    watcher.stop_at = None
    model.learn(60, callback=watcher, reset_num_timesteps=False)
    # The swallowed step shows in the record: time jumps by two behind the first row.
    assert watcher.rows[16][2, 0] - watcher.rows[15][2, 0] == 2
    assert watcher.n_compared > 50


def test_a_loaded_replay_buffer_keeps_its_borders(tmp_path: Path) -> None:
    model, other = (
        off_policy(DQN, env=stamped_vec_env(2, lengths=(40, 40)), buffer_size=200) for _ in range(2)
    )
    watcher, fresh = Watcher(), Watcher()
    for _ in range(3):
        model.learn(30, callback=watcher)
    n_saved = len(watcher.rows)
    model.save_replay_buffer(tmp_path / "buffer")
    other.load_replay_buffer(tmp_path / "buffer")
    fresh.rows, fresh.stored_actions = watcher.rows, watcher.stored_actions
    other.learn(90, callback=fresh)
    other.load_replay_buffer(tmp_path / "buffer")  # replaced under a reader that knew another one
    del fresh.rows[n_saved:], fresh.stored_actions[n_saved:]
    fresh.compare(fresh.reader.read(other))
    other.learn(90, callback=fresh)
    assert fresh.n_compared > 1000


def test_vec_normalize_is_applied_to_replay_buffers() -> None:
    env = VecNormalize(stamped_vec_env(2))
    model, watcher = off_policy(DQN, env=env), Watcher()
    model.learn(80, callback=watcher)
    experience = watcher.reader.read(model)
    steps, envs = np.indices((experience.n_steps, experience.n_envs))
    rows = (steps + model.replay_buffer.pos) % len(model.replay_buffer.dones)
    raw = model.replay_buffer.observations[rows, envs]
    normalized = experience.observations(steps, envs)
    assert normalized.dtype == np.float32
    assert np.array_equal(normalized, np.asarray(env.normalize_obs(raw)))
    assert not np.array_equal(normalized, raw)
    assert watcher.n_compared > 100


def test_vec_normalize_is_not_applied_twice_to_rollouts() -> None:
    env = VecNormalize(stamped_vec_env(2))
    model = PPO("MlpPolicy", env, n_steps=12, batch_size=12, n_epochs=1, **small())
    stored: list[npt.NDArray[Any]] = []

    class Compare(BaseCallback):
        def _on_step(self) -> bool:
            stored.append(np.array(self.model._last_obs))
            return True

        def _on_rollout_end(self) -> None:
            steps, envs = np.indices((12, 2))
            observations = ExperienceReader().read(self.model).observations(steps, envs)
            assert np.array_equal(observations, np.array(stored[-12:]))

    model.learn(48, callback=Compare())
    assert len(stored) == 24


class StampedGoalEnv(StampedDictEnv):
    """Adds the keys that hindsight needs."""

    def __init__(self, env: StampedEnv) -> None:
        super().__init__(env)
        goal = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            observation=env.observation_space, achieved_goal=goal, desired_goal=goal
        )

    def observation(self, observation: npt.NDArray[np.uint8]) -> dict[str, Any]:
        goal = np.zeros(2, dtype=np.float32)
        return {"observation": observation, "achieved_goal": goal, "desired_goal": goal}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> npt.NDArray[np.float32]:
        return np.zeros(len(achieved), dtype=np.float32)


def dict_vec_env(wrapper: type[StampedDictEnv]) -> DummyVecEnv:
    return DummyVecEnv([lambda: wrapper(StampedEnv(0)), lambda: wrapper(StampedEnv(1))])


@pytest.mark.parametrize("hindsight", [False, True])
def test_dictionaries_in_replay_buffers_need_a_key(hindsight: bool) -> None:
    key = "observation" if hindsight else "image"
    env = dict_vec_env(StampedGoalEnv if hindsight else StampedDictEnv)
    settings: dict[str, Any] = {"buffer_size": 58, "learning_starts": 30, "batch_size": 4}
    settings["replay_buffer_class"] = HerReplayBuffer if hindsight else None
    model = DQN("MultiInputPolicy", env, **settings)
    watcher = Watcher(key)
    model.learn(80, callback=watcher)
    model.learn(40, callback=watcher)
    assert watcher.n_compared > 500
    with pytest.raises(
        UnreadableBufferError, match=r"DictReplay|HerReplay.*`observation_key` None"
    ):
        ExperienceReader().read(model)
    with pytest.raises(UnreadableBufferError, match="`observation_key` 'picture'"):
        ExperienceReader("picture").read(model)


@pytest.mark.parametrize("norm_obs_keys", [["image"], ["speed"], None])
def test_normalized_dictionaries_are_read_by_key(norm_obs_keys: list[str] | None) -> None:
    env = VecNormalize(dict_vec_env(StampedDictEnv), norm_obs_keys=norm_obs_keys)
    policy_kwargs = {"normalize_images": norm_obs_keys == ["speed"]}
    model = DQN(
        "MultiInputPolicy", env, buffer_size=58, learning_starts=99, policy_kwargs=policy_kwargs
    )
    model.learn(40)
    buffer: Any = model.replay_buffer
    cells = np.arange(10), np.arange(10) % 2
    expected = env.normalize_obs({key: array[cells] for key, array in buffer.observations.items()})
    found = ExperienceReader("image").read(model).observations(*cells)
    assert np.array_equal(found, expected["image"])
    assert (found.dtype == np.uint8) == (norm_obs_keys == ["speed"])


def test_dictionaries_in_rollout_buffers_need_a_key() -> None:
    model = PPO(
        "MultiInputPolicy", dict_vec_env(StampedDictEnv), n_steps=13, batch_size=13, n_epochs=1
    )
    watcher = FlatteningWatcher("image")
    model.learn(52, callback=watcher)
    assert watcher.n_compared > 50
    with pytest.raises(UnreadableBufferError, match=r"DictRolloutBuffer.*`observation_key` None"):
        ExperienceReader().read(model)


def test_an_algorithm_without_buffer_is_refused() -> None:
    model = ARS("LinearPolicy", stamped_vec_env(1))
    with pytest.raises(UnreadableBufferError, match="ARS has no rollout or replay buffer"):
        ExperienceReader().read(model)


@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_a_part_holds_the_steps_of_its_place_and_their_pairs(algorithm: type[Any]) -> None:
    model = either(algorithm, (5, 9), n_steps=20).learn(100)
    whole = ExperienceReader().read(model)
    steps, envs = np.indices((whole.n_steps, whole.n_envs))
    everything = whole.observations(steps, envs)
    for start, stop in ((0, whole.n_steps), (0, 7), (9, whole.n_steps), (3, 11), (4, 4)):
        part = whole.part(start, stop)
        assert part.n_steps == stop - start
        own = everything[start:stop]
        steps, envs = np.indices((part.n_steps, part.n_envs))
        np.testing.assert_array_equal(part.observations(steps, envs), own)
        where = decode(own)
        expected = [
            (step, env)
            for step in range(part.n_steps - 2)
            for env in range(part.n_envs)
            if where.episode[step, env] == where.episode[step + 2, env]
        ]
        assert list(zip(*legal_anchors(part, 2), strict=True)) == expected
        drawn = part.sample_anchors(2, 1000, np.random.default_rng(0))
        assert sorted(zip(*drawn, strict=True)) == expected
