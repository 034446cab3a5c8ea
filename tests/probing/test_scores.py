from __future__ import annotations

import json

import numpy as np

from rl_infonce.probing import (
    Anand2019,
    ProbeScores,
    majority_scores,
    probe_features,
)
from tests.probing import fakes


def test_converged_reads_labels_that_are_in_the_features() -> None:
    task = fakes.task()
    scores, predictions = probe_features(fakes.one_hot(task), task)
    assert scores.mean == (1.0, 1.0, 1.0)
    assert set(scores.categories) == {"small_object_localization", "misc"}
    assert scores.intervals["ball_x"] == (1.0, 1.0)
    np.testing.assert_array_equal(predictions["flag"], task.labels["flag"][task.split.test])


def test_scores_survive_json() -> None:
    task = fakes.task()
    scores = majority_scores(task)
    again = ProbeScores.from_json(json.loads(json.dumps(scores.to_json())))
    assert again == scores
    assert "lives" in scores.not_probed
    assert scores.n_episodes == {"train": 21, "validation": 3, "test": 6}


def test_anand2019_reads_labels_that_are_in_the_features() -> None:
    task = fakes.task()
    settings = Anand2019(learning_rate=3e-2, max_epochs=40)
    scores, _ = probe_features(fakes.one_hot(task), task, protocol=settings)
    assert scores.mean == (1.0, 1.0, 1.0)
    assert scores.protocol == "anand2019"
