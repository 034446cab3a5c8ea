import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from rl_infonce.probing import (
    Anand2019,
    Converged,
    ProbeScores,
    ProbingTask,
    Split,
    fit_probe,
    majority_scores,
    probe_features,
    score_predictions,
    scored_positions,
)
from tests.further import further
from tests.probing import fakes


def by_hand() -> ProbingTask:
    """Two test episodes, four variables, three categories of which one holds two variables."""
    split = Split(np.arange(4), np.arange(4, 6), np.arange(6, 12))
    labels = {
        "a": np.array([1, 1, 1, 2, 1, 2, 1, 1, 2, 2, 2, 2]),
        "b": np.array([5, 6, 6, 6, 5, 6, 6, 6, 6, 5, 6, 6]),
        "c": np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
        "loose": np.array([9, 8] * 6),
    }
    categories = {"a": ("agent",), "b": ("agent", "misc"), "c": ("clock",), "gone": ("other",)}
    ids = np.repeat([0, 1, 2, 3], [4, 2, 3, 3])
    return ProbingTask(split, labels, {"gone": "entropy"}, ids, ids, categories, {"game": "fake"})


def test_mean_is_over_categories_of_the_mean_over_their_variables() -> None:
    task = by_hand()
    rng = np.random.default_rng(0)
    predictions = {name: values[rng.permutation(6)] for name, values in task.labels.items()}
    scores = score_predictions(predictions, task, protocol="hand")
    f1 = {
        name: f1_score(values[task.split.test], predictions[name], average="weighted")
        for name, values in task.labels.items()
    }
    for name, expected in f1.items():
        assert scores.variables[name].f1_weighted == pytest.approx(expected)
    assert set(scores.categories) == {"agent", "misc", "clock"}
    assert scores.categories["agent"].f1_weighted == pytest.approx((f1["a"] + f1["b"]) / 2)
    expected = ((f1["a"] + f1["b"]) / 2 + f1["b"] + f1["c"]) / 3
    assert scores.mean.f1_weighted == pytest.approx(expected)
    without = score_predictions(predictions, replace(task, categories={}), protocol="hand")
    assert without.mean.f1_weighted == pytest.approx(np.mean(list(f1.values())))
    assert without.categories == {}


def test_majority_is_the_training_mode() -> None:
    scores = majority_scores(by_hand())
    # "a": the mode of 1, 1, 1, 2 is 1, which 2 of 6 test frames are: F1 is 1/2 for it, 0 for 2
    assert tuple(scores.variables["a"]) == pytest.approx((1 / 6, 1 / 4, 1 / 3))
    assert scores.protocol == "majority"
    assert scores.n_frames == {"train": 4, "validation": 2, "test": 6}
    assert scores.n_episodes == {"train": 1, "validation": 1, "test": 2}
    assert scores.not_probed == {"gone": "entropy"}
    assert "gone" not in scores.variables


def test_intervals_hold_the_score_and_are_the_seeds() -> None:
    task = fakes.task()
    predictions = fakes.partly_right(task, 0.7)
    first, again, other = (
        score_predictions(predictions, task, protocol="fake", seed=seed) for seed in (0, 0, 1)
    )
    assert first == again
    assert first.intervals != other.intervals
    assert first.variables == other.variables
    assert set(first.intervals) == {"mean", *first.categories, *first.variables}
    for name, (low, high) in first.intervals.items():
        figures = {"mean": first.mean, **first.categories, **first.variables}[name]
        assert low < figures.f1_weighted < high
        assert high - low < 0.2


def played(
    n_episodes: int, rng: np.random.Generator, ease: tuple[float, float] = (7, 3)
) -> tuple[ProbingTask, dict[str, Any]]:
    """Episodes of 20 to 119 frames that differ in their classes and in how well these are told."""
    lengths = rng.integers(20, 120, n_episodes)
    episode_ids = np.repeat(np.arange(n_episodes), lengths)
    shares = rng.dirichlet([3.2, 2.4, 1.6, 0.8], n_episodes)
    is_above = rng.random(len(episode_ids))[:, None] > shares.cumsum(1)[episode_ids]
    labels = is_above.sum(1).clip(0, 3)
    known = rng.random(len(episode_ids)) < rng.beta(*ease, n_episodes)[episode_ids]
    predictions = np.where(known, labels, rng.integers(4, size=len(labels)))
    nothing = np.arange(0)
    split = Split(nothing, nothing, np.arange(len(labels)))
    task = ProbingTask(split, {"x": labels}, {}, episode_ids, episode_ids, {}, {})
    return task, {"x": predictions}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_episodes", "ease", "lowest", "highest"),
    [(2, (7, 3), 0.91, 0.98), further(5, (7, 3), 0.91, 0.98), (5, (30, 1), 0.83, 0.91)],
)
def test_intervals_hold_the_score_of_all_episodes_as_often_as_they_say(
    n_episodes: int, ease: tuple[float, float], lowest: float, highest: float
) -> None:
    rng = np.random.default_rng(0)
    many, predictions = played(20_000, rng, ease)
    truth = f1_score(many.labels["x"], predictions["x"], average="weighted")
    n_tasks, n_held = 300, 0
    for seed in range(n_tasks):
        task, predictions = played(n_episodes, rng, ease)
        scores = score_predictions(predictions, task, protocol="fake", seed=seed)
        low, high = scores.intervals["mean"]
        assert 0 <= low <= scores.mean.f1_weighted <= high <= 1
        n_held += low <= truth <= high
    assert lowest < n_held / n_tasks < highest


def test_one_test_episode_has_no_interval() -> None:
    task = by_hand()
    one = replace(task, split=task.split._replace(test=np.arange(9, 12)))
    scores = majority_scores(one)
    assert all(math.isnan(end) for ends in scores.intervals.values() for end in ends)
    stored = json.loads(json.dumps(scores.to_json(), allow_nan=False))
    assert stored["intervals"]["mean"] == [None, None]
    assert math.isnan(ProbeScores.from_json(stored).intervals["mean"][0])


@pytest.mark.parametrize("protocol", ["converged", Anand2019(max_epochs=2)])
def test_scores_survive_json(protocol: Any) -> None:
    task = fakes.task()
    scores, _ = probe_features(fakes.one_hot(task), task, protocol=protocol, seed=3)
    again = ProbeScores.from_json(json.loads(json.dumps(scores.to_json(), allow_nan=False)))
    assert again.to_json() == scores.to_json()
    assert again.mean == scores.mean
    assert again.intervals == scores.intervals
    assert again.settings["seed"] == 3
    assert again.settings["data"]["game"] == "fake"
    assert "entropy" in again.not_probed["lives"]


def test_foreign_json_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the entries .*'protocol'.* of ProbeScores, got \['a'\]"):
        ProbeScores.from_json({"a": 1})


def test_predictions_must_cover_the_task() -> None:
    with pytest.raises(ValueError, match=r"`predictions` for \['a', 'b', 'c', 'loose'\], got \[\]"):
        score_predictions({}, by_hand(), protocol="hand")


def test_published_test_frames_are_resampled_and_can_be_switched_off() -> None:
    task = fakes.task()
    noise = np.random.default_rng(0).normal(size=(1200, 14)).astype(np.float32)
    features = (fakes.one_hot(task) + noise / 3).astype(np.float32)
    settings = Anand2019(max_epochs=2, learning_rate=1e-2)
    resampled, predictions = probe_features(features, task, protocol=settings)
    plain, same = probe_features(features, task, protocol=replace(settings, resample_test=False))
    test = task.split.test
    for name, values in task.labels.items():
        np.testing.assert_array_equal(predictions[name], same[name])
        assert len(predictions[name]) == len(test)
        expected = f1_score(values[test], same[name], average="weighted", zero_division=0)
        assert plain.variables[name].f1_weighted == pytest.approx(expected)
    assert resampled.variables != plain.variables
    # 3 batches of 64 frames: accuracies are multiples of 1 / 192
    hits = resampled.variables["ball_x"].accuracy * 192
    assert hits == pytest.approx(round(hits))


def test_scores_say_on_how_many_groups_their_intervals_rest() -> None:
    task = fakes.task()
    grouped = replace(task, group_ids=task.episode_ids // 8)
    n_episodes, n_groups = (
        majority_scores(each).settings["n_test_groups"] for each in (task, grouped)
    )
    assert n_episodes == len(np.unique(task.episode_ids[task.split.test]))
    assert n_groups == len(np.unique(grouped.group_ids[grouped.split.test])) < n_episodes


def test_a_choice_on_few_validation_episodes_is_warned_of(
    recwarn: pytest.WarningsRecorder,
) -> None:
    task = fakes.task()
    features = fakes.one_hot(task)
    probe_features(features, task, protocol=Converged(penalties=(1e-2, 1e-3)))
    assert not recwarn
    validation = task.split.validation
    rows = validation[task.episode_ids[validation] == task.episode_ids[validation[0]]]
    few = replace(task, split=task.split._replace(validation=rows))
    probe_features(features, few, protocol=Converged(penalties=(1e-3,)))
    assert not recwarn
    with pytest.warns(UserWarning, match=r"at least 3 games .* in the validation part .*, got 1"):
        scores, _ = probe_features(features, few, protocol=Converged(penalties=(1e-2, 1e-3)))
    assert scores.settings["n_validation_groups"] == 1


BAD_FEATURES: list[tuple[Any, str]] = [
    (np.ones((1200, 3, 2)), r"`features` of shape \[1200, D\], got \(1200, 3, 2\)"),
    (np.ones((700, 3)), r"`features` of shape \[1200, D\], got \(700, 3\)"),
    (np.ones((1200, 3)), "`features` to vary, got the same 3 numbers for all 840 training"),
    (
        np.where(np.arange(3600).reshape(1200, 3) < 7, np.nan, 1.0),
        "NaN or infinity in 3 of 1200 rows and 3 of 3 dimensions",
    ),
]


@pytest.mark.parametrize(("features", "message"), BAD_FEATURES)
@pytest.mark.parametrize("protocol", ["converged", "anand2019"])
def test_bad_features_are_refused(features: Any, message: str, protocol: str) -> None:
    with pytest.raises(ValueError, match=message):
        probe_features(features.astype(np.float32), fakes.task(), protocol=protocol)


def test_a_bad_seed_is_refused_before_anything_is_fitted() -> None:
    with pytest.raises(ValueError, match="`seed` to be a finite number >= 0, got -1"):
        probe_features(np.ones((1200, 2), np.float32), fakes.task(), seed=-1)


def test_unknown_protocol_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"`protocol` to be one of .*Did you mean 'converged'"):
        probe_features(np.ones((1200, 2), np.float32), fakes.task(), protocol="convergd")


def test_fit_probe_checks_labels_and_split() -> None:
    task = fakes.task()
    features = fakes.one_hot(task)
    with pytest.raises(ValueError, match=r"`labels\['x'\]` in 0..255, got 0..1199"):
        fit_probe(features, {"x": np.arange(1200)}, task.split)
    with pytest.raises(ValueError, match=r"`labels\['x'\]` of shape \[1200\], got \(5,\)"):
        fit_probe(features, {"x": np.arange(5)}, task.split)
    empty = task.split._replace(validation=np.arange(0))
    with pytest.raises(ValueError, match="frames in the validation part of `split`, got none"):
        fit_probe(features, task.labels, empty)
    assert fit_probe(features, task.labels, task.split._replace(test=np.arange(0))).classifiers
    outside = task.split._replace(test=np.array([1200]))
    with pytest.raises(ValueError, match=r"the test rows of `split` in 0..1199.*got 1200..1200"):
        fit_probe(features, task.labels, outside)


def test_predict_checks_the_number_of_dimensions() -> None:
    task = fakes.task()
    probe = fit_probe(fakes.one_hot(task), task.labels, task.split)
    with pytest.raises(ValueError, match=r"`features` of shape \[B, 14\], got \(2, 3\)"):
        probe.predict(np.zeros((2, 3), np.float32))
    nothing = probe.predict(np.zeros((0, 14), np.float32))
    assert {name: len(found) for name, found in nothing.items()} == {"ball_x": 0, "flag": 0}


@pytest.mark.parametrize(
    ("changes", "positions", "error", "message"),
    [
        ({"a": np.zeros(6)}, None, TypeError, r"s\['a'\]` to hold integers, got float64"),
        ({"a": np.zeros(5, int)}, None, ValueError, r"s\['a'\]` of shape \[6\], got \(5,\)"),
        ({"a": np.full(6, 256)}, None, ValueError, r"`predictions\['a'\]` in 0..255, got 256"),
        ({}, np.array([], int), ValueError, "`positions` in 0..5 of the test part, .* got none"),
        ({}, np.array([-1, 0]), ValueError, "`positions` in 0..5 .* got -1..0"),
        ({}, np.array([6]), ValueError, "`positions` in 0..5 .* got 6..6"),
        ({}, np.array([0.5]), TypeError, "`positions` to hold integers"),
    ],
)
def test_what_cannot_be_scored_is_named(
    changes: dict[str, Any], positions: Any, error: type[Exception], message: str
) -> None:
    task = by_hand()
    predictions = fakes.partly_right(task) | changes
    with pytest.raises(error, match=message):
        score_predictions(predictions, task, protocol="hand", positions=positions)


def test_the_scored_positions_give_the_reported_scores() -> None:
    task = fakes.task()
    protocol = Anand2019(max_epochs=2, batch_size=32)
    scores, predictions = probe_features(fakes.one_hot(task), task, protocol=protocol, seed=3)
    positions = scored_positions(task, protocol=protocol, seed=3)
    again = score_predictions(predictions, task, protocol="anand2019", positions=positions, seed=3)
    assert (again.mean, again.intervals) == (scores.mean, scores.intervals)
    assert scored_positions(task) is None
