from collections import Counter

import numpy as np
import pytest

from rl_infonce.probing import Split, knn_predictions, knn_scores, neighbours
from tests.probing import fakes

SPLIT = Split(np.arange(150), np.arange(150, 160), np.arange(160, 220))


@pytest.mark.parametrize("n_neighbours", [1, 2, 5, 150])
def test_neighbours_equal_brute_force(n_neighbours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_DISTANCES_PER_BLOCK", 150 * 7)  # blocks of 7 test frames
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(220, 6)) * [1, 1, 9, 0.1, 1, 1] + 20).astype(np.float32)
    labels = {"few": rng.integers(0, 3, 220), "many": rng.integers(200, 256, 220)}
    found = knn_predictions(features, labels, SPLIT, n_neighbours=n_neighbours)
    train = features[SPLIT.train].astype(np.float64)
    scale = train.std(0)
    for place, row in enumerate(SPLIT.test):
        distances = np.linalg.norm((features[row] - train) / scale, axis=1)
        nearest = np.argsort(distances)[:n_neighbours]
        for name, values in labels.items():
            candidates = values[SPLIT.train][nearest].tolist()
            votes = Counter(candidates)
            tied = {label for label, n in votes.items() if n == max(votes.values())}
            ranks = {
                label: sum(rank for rank, each in enumerate(candidates) if each == label)
                for label in tied
            }
            best = min(ranks.values())
            assert ranks.get(int(found[name][place])) == best


def test_a_tie_goes_to_the_nearer_label() -> None:
    features = np.array([[0.0], [1.0], [3.0], [9.0], [0.6]], np.float32)
    split = Split(np.arange(3), np.array([3]), np.array([4]))
    labels = {"x": np.array([5, 8, 5, 0, 0])}
    assert knn_predictions(features, labels, split, n_neighbours=2)["x"].tolist() == [8]
    assert knn_predictions(features, labels, split, n_neighbours=3)["x"].tolist() == [5]


@pytest.mark.parametrize(
    ("n_neighbours", "error", "message"),
    [
        (0, ValueError, "`n_neighbours` to be a finite number >= 1, got 0"),
        (151, ValueError, "`n_neighbours` to be at most 150, the .* frames, got 151"),
        (2.5, TypeError, r"`n_neighbours` to be an integer, got 2\.5"),
    ],
)
def test_number_of_neighbours_must_exist(
    n_neighbours: int, error: type[Exception], message: str
) -> None:
    features = np.random.default_rng(0).normal(size=(220, 2)).astype(np.float32)
    with pytest.raises(error, match=message):
        knn_predictions(features, {"x": np.zeros(220, int)}, SPLIT, n_neighbours=n_neighbours)


def test_scores_are_those_of_the_predictions() -> None:
    task = fakes.task()
    scores = knn_scores(fakes.one_hot(task), task, n_neighbours=3)
    assert scores.protocol == "knn"
    assert scores.settings["n_neighbours"] == 3
    assert scores.mean.f1_weighted == 1
    noise = np.random.default_rng(0).normal(size=(len(task.episode_ids), 4)).astype(np.float32)
    found = knn_predictions(noise, task.labels, task.split, n_neighbours=3)
    for name, score in knn_scores(noise, task, n_neighbours=3).variables.items():
        right = found[name] == task.labels[name][task.split.test]
        assert score.accuracy == pytest.approx(right.mean())
