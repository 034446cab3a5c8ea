"""Observations with labels from infos, and live probes by them."""

import dataclasses
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecNormalize,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce import InfoNCEExtractor, ProbeCallback
from rl_infonce.agents.features import fitted_normalizer, untrained_policy
from rl_infonce.live_probes import collect_labelled, own_labels
from rl_infonce.live_probes.own_labels import _classes_of
from rl_infonce.probing import Converged
from tests.further import further
from tests.sb3.fakes import StampedEnv, StampedVectorEnv, decode
from tests.sb3.worlds import assert_same_weights, policy_kwargs, streams


class Labelled(gym.Wrapper[Any, Any, Any, Any]):
    """Stamped observations whose infos say what the stamps say."""

    def __init__(self, env: StampedEnv, *, at_reset: bool = True, **more: Any) -> None:
        super().__init__(env)
        self.at_reset, self.more = at_reset, more

    def labels(self) -> dict[str, Any]:
        env: Any = self.unwrapped
        return {
            "labels": {"time": env.time, "height": float(env.time), **self.more},
            "stamp": (env.env, env.episode),
        }

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, _ = self.env.reset(**arguments)
        return observation, self.labels() if self.at_reset else {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return observation, reward, terminated, truncated, self.labels()


def stamped(
    n_envs: int = 2, kind: type[StampedEnv] = StampedEnv, vec: Any = DummyVecEnv, **more: Any
) -> VecEnv:
    lengths = (4, 7)
    env: VecEnv = vec(
        [lambda i=i: Labelled(kind(i, lengths=lengths), **more) for i in range(n_envs)]
    )
    return env


@pytest.mark.parametrize(
    ("kind", "vec", "at_reset"),
    [
        (StampedEnv, DummyVecEnv, True),
        (StampedVectorEnv, DummyVecEnv, False),
        further(StampedEnv, DummyVecEnv, False),
        further(StampedVectorEnv, SubprocVecEnv, True),
    ],
)
def test_every_label_is_that_of_its_observation(
    kind: type[StampedEnv], vec: Any, at_reset: bool
) -> None:
    env = stamped(3, kind, vec, at_reset=at_reset)
    labelled = collect_labelled(env, 100)
    env.close()
    stamps = decode(labelled.observations)
    assert 100 <= len(labelled.observations) <= 102
    assert np.array_equal(labelled.labels["time"], stamps.time)
    assert (stamps.time == 0).any() == at_reset
    # Rows of one environment follow one another, and no two episodes share an id.
    pairs = list(zip(stamps.env.tolist(), stamps.episode.tolist(), strict=True))
    ids = dict(zip(pairs, labelled.episode_ids.tolist(), strict=True))
    assert len(set(ids.values())) == len(ids)
    assert [ids[pair] for pair in pairs] == labelled.episode_ids.tolist()
    assert pairs == sorted(pairs)
    same = np.diff(labelled.episode_ids) == 0
    assert (np.diff(stamps.time)[same] == 1).all()


class Lives(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode at every third step, as with each life, and plays on."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.is_over, self.last = True, None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        if self.is_over:
            self.last, info = self.env.reset(**arguments)
            return self.last, info
        env: Any = self.unwrapped
        return self.last, {"labels": {"time": env.time, "height": float(env.time)}}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.last, reward, terminated, truncated, info = self.env.step(action)
        env: Any = self.unwrapped
        self.is_over = terminated or truncated
        return self.last, reward, terminated or env.time % 3 == 0, truncated, info


@pytest.mark.parametrize("monitored", [True, False])
def test_lives_of_a_game_are_a_group(monitored: bool) -> None:
    def lives(place: int) -> gym.Env[Any, Any]:
        env: gym.Env[Any, Any] = Labelled(StampedEnv(place, lengths=(7, 8)))
        return Lives(Monitor(env) if monitored else env)

    labelled = collect_labelled(DummyVecEnv([partial(lives, i) for i in range(2)]), 100)
    stamps = decode(labelled.observations)
    games = list(zip(stamps.env.tolist(), stamps.episode.tolist(), strict=True))
    assert len(set(labelled.episode_ids.tolist())) > 2 * len(set(games))
    if not monitored:
        assert labelled.group_ids is None
        return
    assert labelled.group_ids is not None
    by_game = dict(zip(games, labelled.group_ids.tolist(), strict=True))
    assert [by_game[game] for game in games] == labelled.group_ids.tolist()
    assert len(set(by_game.values())) == len(by_game)


def test_numbers_that_are_no_integers_become_classes_of_equal_size() -> None:
    labelled = collect_labelled(stamped(), 400, n_classes=3)
    height, time = labelled.labels["height"], labelled.labels["time"]
    cuts = np.quantile(time, [1 / 3, 2 / 3])
    assert np.array_equal(height, (time[:, None] >= cuts).sum(axis=1))
    assert labelled.provenance["n_classes"] == 3


@pytest.mark.parametrize(
    ("values", "n_classes", "sizes"),
    [
        ([0.0] * 6 + [1.0] * 4, 2, [6, 4]),
        ([0.0] * 55 + [*range(1, 46)], 2, [55, 45]),
        ([0.0] * 88 + [*range(1, 13)], 8, [88, 12]),
        ([1.0] * 12 + [0.0] * 88, 8, [88, 12]),
        ([0.0] * 5 + [1.0] * 95, 8, [5, 95]),
        ([2.5] * 10, 8, [10]),
    ],
)
def test_many_equal_numbers_are_a_class_of_their_own(
    values: list[float], n_classes: int, sizes: list[int]
) -> None:
    classes = _classes_of(np.array(values, dtype=np.float64), n_classes)
    assert [int((classes == each).sum()) for each in range(len(sizes))] == sizes


def test_arrays_are_variables_entry_by_entry() -> None:
    more: dict[str, Any] = {"place": np.array([[1, 2], [3, 4]]), "alive": np.True_, "speed": [0.5]}
    labels = collect_labelled(stamped(**more), 20).labels
    expected = {"place_0": 1, "place_1": 2, "place_2": 3, "place_3": 4, "alive": 1}
    assert {name: set(labels[name].tolist()) for name in expected} == {
        name: {value} for name, value in expected.items()
    }
    assert set(labels) == {"time", "height", "speed_0", *expected}


def test_a_stack_of_images_is_as_the_agent_sees_it() -> None:
    class ChannelsLast(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)

        def observation(self, observation: Any) -> Any:
            return observation[:1].transpose(1, 2, 0)

    def make() -> VecEnv:
        return VecFrameStack(DummyVecEnv([lambda: ChannelsLast(Labelled(StampedEnv()))]), 4)

    labelled = collect_labelled(make(), 50)
    model = PPO("CnnPolicy", make(), policy_kwargs=policy_kwargs())
    assert labelled.observations.shape[1:] == model.observation_space.shape == (4, 36, 36)
    newest = np.repeat(labelled.observations[:, -1:], 4, axis=1)
    assert np.array_equal(decode(newest).time, labelled.labels["time"])


def test_the_same_seed_gives_the_same_set_and_no_stream_of_others_moves() -> None:
    env = stamped()
    before, own = streams(), env.action_space.np_random.bit_generator.state
    first, again, other = (collect_labelled(stamped(), 60, seed=seed) for seed in (0, 0, 1))
    collect_labelled(env, 20)
    assert np.array_equal(first.observations, again.observations)
    assert first.provenance != other.provenance
    assert streams() == before
    assert env.action_space.np_random.bit_generator.state == own


@pytest.mark.parametrize(
    ("env", "arguments", "error", "message"),
    [
        (
            lambda: stamped(),
            {"key": "state"},
            ValueError,
            r"under 'state', got \['TimeLimit.truncated', 'labels'",
        ),
        (lambda: VecNormalize(stamped()), {}, ValueError, "without VecNormalize"),
        (lambda: stamped(name="text"), {}, TypeError, r"\['name'\] to be a number"),
        (lambda: stamped(name=np.nan), {}, ValueError, r"\['name'\] to be finite, got nan"),
        (lambda: stamped(name=256), {}, ValueError, "Renumber the classes"),
        (lambda: stamped(), {"key": "stamp"}, TypeError, "to be a dictionary from names"),
        (lambda: stamped(time_0=1, time=[1, 2]), {}, ValueError, r"other names than \['time_0'\]"),
        (lambda: stamped(name=[[1], [2, 3]]), {}, TypeError, r"\['name'\] to be a number"),
        (lambda: gym.make("CartPole-v1"), {}, TypeError, "to be a VecEnv, got TimeLimit"),
        (lambda: stamped(), {"seed": -1}, ValueError, "seed"),
        (lambda: stamped(), {"n_classes": 1}, ValueError, "n_classes"),
        (lambda: stamped(), {"n_classes": 257}, ValueError, "<= 256, got 257"),
    ],
)
def test_what_is_no_label_is_named(
    env: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        collect_labelled(env(), 20, **arguments)


def test_labels_that_end_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ending(Labelled):
        n_labelled = 0

        def labels(self) -> dict[str, Any]:
            self.n_labelled += 1
            return super().labels() if self.n_labelled <= 20 else {}

    monkeypatch.setattr(own_labels, "_LONGEST_GAP", 300)
    env = DummyVecEnv([lambda: Ending(StampedEnv(0))])
    with pytest.raises(
        ValueError, match=r"under 'labels', got \d+ of 1000, then 301 steps without"
    ):
        collect_labelled(env, 1000)


# -- live probes by them ---------------------------------------------------------------------------


def of_vectors(algorithm: Any, seed: int = 0, **settings: Any) -> Any:
    kind, off_policy = StampedVectorEnv, algorithm is SAC
    env = DummyVecEnv([lambda: kind(0, lengths=(4, 7), continuous=off_policy)])
    sizes = {"learning_starts": 20} if off_policy else {"n_steps": 32, "batch_size": 32}
    kwargs: dict[str, Any] = {"features_extractor_class": InfoNCEExtractor}
    kwargs["features_extractor_kwargs"] = settings
    return algorithm("MlpPolicy", env, policy_kwargs=kwargs, seed=seed, **sizes)


@pytest.mark.parametrize("algorithm", [PPO, further(SAC)])
def test_features_of_vectors_are_probed_while_they_train(algorithm: Any, tmp_path: Path) -> None:
    labelled = collect_labelled(stamped(2, StampedVectorEnv), 1000)
    plain = of_vectors(algorithm).learn(96)
    model = of_vectors(algorithm)
    model.tensorboard_log = str(tmp_path)
    quick = Converged(penalties=(1e-3,), tolerance=1e-2, path_tolerance=1e-2)
    callback = ProbeCallback(labelled, 48, protocols=[quick], projector=True)
    model.learn(96, callback=callback)
    assert_same_weights(model.policy, plain.policy, with_own=True)
    assert len(callback.history) == 3
    scores = callback.history[-1][1]["converged"]
    assert callback.majority is not None
    # PPO's policy also receives the observation, whose stamp tells the time; SAC's features know.
    assert scores.mean.f1_weighted > callback.majority.mean.f1_weighted + 0.2
    (folder,) = tmp_path.iterdir()
    tags = EventAccumulator(str(folder)).Reload().Tags()
    assert {"probe_variables/time", "probe/f1_mean"} <= set(tags["scalars"])
    assert set(tags["images"]) == {"probe_figures/table", "probe_figures/heat_map"}


def test_an_untrained_network_reads_vectors_on_the_scale_of_trained_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labelled = collect_labelled(stamped(2, StampedVectorEnv), 1000)
    made: list[Any] = []

    def noted(*given: Any) -> Any:
        made.append(untrained_policy(*given))
        return made[-1]

    monkeypatch.setattr("rl_infonce.live_probes.probe_callback.untrained_policy", noted)
    of_vectors(PPO).learn(32, callback=ProbeCallback(labelled, 500, figures=False))
    (policy,) = made
    means = policy.features_extractor.encoder.means
    assert np.allclose(means, labelled.observations.mean(axis=0), rtol=1e-4)


def test_behind_vec_normalize_an_untrained_network_reads_what_was_labelled() -> None:
    labelled = collect_labelled(stamped(2, StampedVectorEnv), 1000)
    env = VecNormalize(DummyVecEnv([lambda: StampedVectorEnv(0)]))
    kwargs = {"features_extractor_class": InfoNCEExtractor}
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=16, policy_kwargs=kwargs, seed=0)
    untrained = []
    for _ in range(2):
        callback = ProbeCallback(labelled, 500, figures=False)
        model.learn(32, callback=callback, reset_num_timesteps=False)
        untrained.append(callback.untrained)
    assert untrained[0] == untrained[1], "it depends on how much VecNormalize has counted"
    assert callback.majority is not None
    f1_of_untrained = untrained[0]["converged"].mean.f1_weighted
    assert f1_of_untrained > callback.majority.mean.f1_weighted + 0.2
    now = fitted_normalizer(env, labelled.observations)
    assert now is not None
    read = now.normalize_obs(labelled.observations)
    assert isinstance(read, np.ndarray)
    assert np.allclose(read.mean(axis=0), 0, atol=0.01)
    assert fitted_normalizer(None, labelled.observations) is None


@pytest.mark.parametrize("threshold", [0.6, 0.3])
def test_a_label_that_hardly_varies_is_left_out_with_a_warning(threshold: float) -> None:
    labelled = collect_labelled(stamped(2, StampedVectorEnv), 1000)
    rare = (labelled.labels["time"] == 3).astype(np.int64)
    labelled = dataclasses.replace(labelled, labels={**labelled.labels, "rare": rare})
    callback = ProbeCallback(labelled, 500, entropy_threshold=threshold, figures=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        of_vectors(PPO).learn(32, callback=callback)
    told = [str(each.message) for each in caught]
    assert callback.task is not None
    if threshold < 0.5:
        assert not told
        assert set(callback.task.labels) == {"time", "height", "rare"}
        return
    (message,) = told
    assert re.search(r"leaves out .* \(rare: entropy of 0\.\d+ nats is below 0\.6 in ", message)
    assert set(callback.task.labels) == {"time", "height"}


def test_normalisation_below_a_frame_stack_is_refused() -> None:
    labelled = collect_labelled(VecFrameStack(stamped(2, StampedVectorEnv), 2), 100)
    env = VecFrameStack(VecNormalize(DummyVecEnv([lambda: StampedVectorEnv(0)])), 2)
    kwargs = {"features_extractor_class": InfoNCEExtractor}
    with pytest.raises(ValueError, match=r"VecNormalize around vectors \(10,\).*around \(5,\)"):
        PPO("MlpPolicy", env, policy_kwargs=kwargs).learn(1, callback=ProbeCallback(labelled))


def test_features_that_are_the_observations_themselves_are_refused() -> None:
    labelled = collect_labelled(stamped(2, StampedVectorEnv), 100)
    env = DummyVecEnv([lambda: StampedVectorEnv(0)])
    with pytest.raises(ValueError, match=r"features from vectors.*Use InfoNCEExtractor"):
        PPO("MlpPolicy", env).learn(1, callback=ProbeCallback(labelled))


def test_observations_of_several_parts_are_refused_with_the_way_out() -> None:
    several = DummyVecEnv([lambda: SimpleMultiObsEnv(channel_last=False)])
    with pytest.raises(ValueError, match=r"got Dict\(.*score these by .*probe_features"):
        collect_labelled(several, 100)
    labelled = collect_labelled(stamped(2, StampedVectorEnv), 100)
    with pytest.raises(TypeError, match=r"got Dict\(.*score these by .*probe_features"):
        PPO("MultiInputPolicy", several).learn(1, callback=ProbeCallback(labelled))
