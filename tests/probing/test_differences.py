"""Differences of two encoders are those of their scores, with intervals of paired episodes."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from rl_infonce.probing import ProbingTask, Split, f1_differences, score_predictions
from tests.probing import fakes
from tests.probing.fakes import partly_right


def test_differences_are_those_of_the_scores() -> None:
    task = fakes.task()
    ours, theirs = partly_right(task, 0.8, 0), partly_right(task, 0.6, 1)
    found = f1_differences(ours, theirs, task)
    one, other = (score_predictions(each, task, protocol="fake") for each in (ours, theirs))
    expected = {"mean": one.mean.f1_weighted - other.mean.f1_weighted}
    for name in one.categories:
        expected[name] = one.categories[name].f1_weighted - other.categories[name].f1_weighted
    for name, values in task.labels.items():
        true = values[task.split.test]
        expected[name] = f1_score(true, ours[name], average="weighted") - f1_score(
            true, theirs[name], average="weighted"
        )
    assert {name: each.value for name, each in found.items()} == pytest.approx(expected)
    assert all(each.low < each.value < each.high for each in found.values())
    turned = f1_differences(theirs, ours, task)
    for name, each in found.items():
        assert turned[name] == pytest.approx((-each.value, -each.high, -each.low))


def test_equal_predictions_differ_nowhere() -> None:
    task = fakes.task()
    same = partly_right(task, 0.7, 0)
    assert set(f1_differences(same, same, task).values()) == {(0.0, 0.0, 0.0)}


def episodes_of_unequal_difficulty(n_episodes: int, rng: np.random.Generator) -> Any:
    """Return a task, and predictions of two encoders of which the first is right 0.1 more often."""
    length = 60
    n_test = n_episodes * length
    rows = np.arange(2 + n_test)
    truth = rng.integers(0, 2, len(rows))
    ids = np.concatenate([[0, 1], 2 + np.arange(n_test) // length])
    task = ProbingTask(Split(rows[:1], rows[1:2], rows[2:]), {"x": truth}, {}, ids, ids, {}, {})
    ease = np.repeat(rng.uniform(0.5, 0.9, n_episodes), length)
    test = truth[2:]
    ours, theirs = (
        {"x": np.where(rng.random(n_test) < ease + gain, test, 1 - test)} for gain in (0.1, 0.0)
    )
    return task, ours, theirs


def test_what_makes_an_episode_hard_for_both_cancels() -> None:
    task, ours, theirs = episodes_of_unequal_difficulty(12, np.random.default_rng(0))
    (low, high) = score_predictions(ours, task, protocol="fake").intervals["x"]
    paired = f1_differences(ours, theirs, task)["x"]
    assert paired.high - paired.low < 0.7 * (high - low)
    assert paired.low > 0


@pytest.mark.slow
@pytest.mark.parametrize("n_episodes", [3, 8])
def test_intervals_hold_the_true_difference_as_often_as_they_say(n_episodes: int) -> None:
    held = []
    for seed in range(150):
        rng = np.random.default_rng([seed, n_episodes])
        task, ours, theirs = episodes_of_unequal_difficulty(n_episodes, rng)
        found = f1_differences(ours, theirs, task)["x"]
        held.append(found.low < 0.1 < found.high)
    assert 0.88 < np.mean(held) < 0.995


def test_predictions_of_another_task_are_named() -> None:
    task = fakes.task()
    ours = partly_right(task, 0.8, 0)
    with pytest.raises(ValueError, match="Expected `predictions` for"):
        f1_differences(ours, {}, task)


def test_scores_are_no_predictions() -> None:
    task = fakes.task()
    with pytest.raises(TypeError, match=r"got str\. `probe_features` returns them"):
        f1_differences("scores", partly_right(task, 0.8, 0), task)  # type: ignore[arg-type]
