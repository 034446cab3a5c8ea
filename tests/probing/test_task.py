from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rl_infonce.probing import (
    LabelledObservations,
    ProbingTask,
    Split,
    make_task,
    score_predictions,
)
from rl_infonce.probing.resampling import resampled_f1
from tests.probing import fakes

DATA = fakes.labelled()


def task_of(data: LabelledObservations = DATA, seed: int = 0, **settings: Any) -> ProbingTask:
    return make_task(data, np.random.default_rng(seed), **settings)


def test_task_holds_what_its_parts_say() -> None:
    task = task_of()
    assert set(task.labels) == {"ball_x", "flag"}
    assert "entropy of 0.000 nats" in task.not_probed["lives"]
    assert [len(rows) for rows in task.split] == [840, 120, 240]
    assert task.categories["flag"] == ("misc",)
    assert task.provenance["game"] == "fake"
    assert task.provenance["entropy_threshold"] == 0.6
    assert task.provenance["n_test_duplicates"] == 0


def test_frames_are_read_once_for_all_tasks() -> None:
    class Counted:
        shape, dtype, n_read = (60, 3), np.dtype(np.uint8), 0

        def __len__(self) -> int:
            return 60

        def __getitem__(self, rows: Any) -> Any:
            self.n_read += len(rows)
            return np.arange(180, dtype=np.uint8).reshape(60, 3)[rows]

    frames = Counted()
    labels = {"a": np.arange(60) % 3}
    data = LabelledObservations(frames, labels, np.repeat(np.arange(20), 3))
    for seed in range(3):
        task_of(data, seed)
    assert frames.n_read == 60


def test_repeated_frames_leave_the_test_part() -> None:
    data = fakes.labelled()
    plain = task_of()
    data.observations[plain.split.test[:7]] = data.observations[plain.split.train[0]]
    task = task_of(data)
    np.testing.assert_array_equal(task.split.test, plain.split.test[7:])
    assert task.provenance["n_test_duplicates"] == 7


def test_a_test_part_that_vanishes_is_an_error() -> None:
    data = fakes.labelled()
    data.observations[:] = 0
    with pytest.raises(ValueError, match="do not occur in training or validation, got 0 of 240"):
        task_of(data)


def test_nothing_to_probe_lists_the_reasons() -> None:
    with pytest.raises(ValueError, match=r"a variable to probe, got none \(ball_x: entropy of 2"):
        task_of(threshold=9)


def test_short_episodes_can_be_left_out() -> None:
    data = replace(DATA, episode_ids=np.repeat(np.arange(26), [70] * 16 + [8] * 10))
    task = task_of(data, min_episode_length=65)
    assert sum(len(rows) for rows in task.split) == 16 * 70
    with pytest.raises(ValueError, match=r"`min_episode_length`=71 frames, got 26 of at most 70"):
        task_of(data, min_episode_length=71)


LIVES = np.repeat(np.arange(60), 20)
OF_LIVES = replace(DATA, episode_ids=LIVES)
OF_GAMES = replace(OF_LIVES, group_ids=LIVES // 3)


def test_groups_of_episodes_lie_in_one_part() -> None:
    games = LIVES // 3
    for seed in range(5):
        by_life, task = task_of(OF_LIVES, seed), task_of(OF_GAMES, seed)
        assert n_shared(games, by_life.split) > 0
        assert n_shared(games, task.split) == 0
        assert [len(set(games[rows].tolist())) for rows in task.split] == [14, 2, 4]


def n_shared(games: npt.NDArray[np.int64], split: Split) -> int:
    train, validation, test = (set(games[rows].tolist()) for rows in split)
    return len(train & validation) + len(train & test) + len(validation & test)


def test_intervals_resample_groups() -> None:
    task = task_of(OF_GAMES)
    predictions = fakes.partly_right(task)
    assert resampled_f1(predictions, task)[1] == 4
    scores = score_predictions(predictions, task, protocol="fake")
    assert scores.n_episodes["test"] == 12


def test_entropy_on_train_does_not_look_at_the_test_part() -> None:
    test = task_of().split.test
    late = np.zeros(len(DATA.episode_ids), np.uint8)
    late[test] = np.arange(len(test)) % 9
    data = replace(DATA, labels={**DATA.labels, "late": late})
    tasks = {on: task_of(data, entropy_on=on) for on in ("train", "all")}
    assert "late" in tasks["train"].not_probed
    assert "late" in tasks["all"].labels
    with pytest.raises(ValueError, match=r"`entropy_on` to be one of \['all', 'train'\]"):
        task_of(entropy_on="test")


def test_what_is_constant_in_the_test_part_is_not_probed() -> None:
    test = task_of().split.test
    early = (np.arange(len(DATA.episode_ids)) % 5).astype(np.uint8)
    early[test] = 3
    data = replace(DATA, labels={**DATA.labels, "early": early})
    task = task_of(data)
    assert "early" not in task.labels
    assert f"one value in all {len(test)} test frames" in task.not_probed["early"]
    assert "early" in task_of(data, entropy_on="all").labels


def test_test_episodes_of_one_frame_stay_and_repeated_frames_do_not_count_in_the_entropy() -> None:
    """Deviations from the published code, which `make_task` names."""
    data = fakes.labelled()
    plain = task_of()
    episode = data.episode_ids[plain.split.test[0]]
    first, *others = np.flatnonzero(data.episode_ids == episode)
    data.observations[others] = data.observations[plain.split.train[0]]
    only_there = np.zeros(len(data.episode_ids), np.uint8)
    only_there[others] = np.arange(len(others))
    moving = {**data.labels, "moving": only_there}
    task = task_of(replace(data, labels=moving), entropy_on="all", threshold=0.1)
    assert first in task.split.test
    assert not np.isin(others, task.split.test).any()
    assert "entropy of 0.000 nats" in task.not_probed["moving"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": {}}, ValueError, "`labels` for at least one variable"),
        ({"labels": {"x": np.zeros(7, int)}}, ValueError, r"`labels\['x'\]` of shape \[1200\]"),
        ({"labels": {"x": np.full(1200, 256)}}, ValueError, r"`labels\['x'\]` in 0..255, got 256"),
        ({"labels": {"x": np.full(1200, -1)}}, ValueError, r"in 0..255, got -1..-1"),
        ({"labels": {"x": np.zeros(1200)}}, TypeError, r"`labels\['x'\]` to hold integers"),
        ({"episode_ids": np.zeros(5, int)}, ValueError, r"`episode_ids` of shape \[1200\]"),
        ({"group_ids": np.zeros(5, int)}, ValueError, r"`group_ids` of shape \[1200\]"),
        ({"group_ids": np.zeros(1200)}, TypeError, "`group_ids` to hold integers"),
        ({"group_ids": np.arange(1200) // 7}, ValueError, "got episode 0 in several groups"),
        ({"categories": {"y": ("misc",)}}, ValueError, r"in `labels`, .* got \['y'\]"),
        ({"categories": {"flag": "misc"}}, TypeError, r"categories\['flag'\] to be a tuple"),
        ({"categories": {"flag": ("mean",)}}, ValueError, r"named 'mean', .* got \['mean'\]"),
        ({"categories": {"flag": ("ball_x",)}}, ValueError, r"like the other, got \['ball_x'\]"),
        ({"labels": {"mean": np.zeros(1200, int)}}, ValueError, r"got \['mean'\]"),
        ({"labels": np.zeros(1200, int)}, TypeError, "`labels` to be a dictionary"),
    ],
)
def test_bad_data_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    data = replace(DATA, categories={})
    with pytest.raises(error, match=message):
        LabelledObservations(**{**vars(data), **change})


def test_a_seed_stands_for_its_generator() -> None:
    np.testing.assert_array_equal(make_task(DATA, 3).split.test, task_of(seed=3).split.test)


@pytest.mark.parametrize("settings", [{"rng": None}, {"rng": 0, "min_episode_length": "65"}])
def test_a_task_is_of_its_seed_and_whole_numbers(settings: dict[str, Any]) -> None:
    name = list(settings)[-1]
    with pytest.raises(TypeError, match=f"`{name}` to be an integer"):
        make_task(DATA, **settings)


def test_frames_are_no_labelled_observations() -> None:
    with pytest.raises(TypeError, match=r"got dict.*frames\.labelled\(\"agent\"\)"):
        make_task({}, 0)  # type: ignore[arg-type]
