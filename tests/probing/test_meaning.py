"""What a probe's score says: 1 where the features hold the label, the majority's where not."""

from typing import Any

import numpy as np
import pytest

from rl_infonce.probing import Anand2019, ProbeScores, majority_scores, probe_features
from tests.probing import fakes

# the published probe with a learning rate for data sets of a thousand frames
PUBLISHED = Anand2019(learning_rate=3e-2, max_epochs=40)
PROTOCOLS = pytest.mark.parametrize("protocol", ["converged", PUBLISHED], ids=["conv", "anand"])


@PROTOCOLS
def test_labels_in_the_features_are_read(protocol: Any) -> None:
    task = fakes.task()
    scores, predictions = probe_features(fakes.one_hot(task), task, protocol=protocol)
    assert scores.mean == (1.0, 1.0, 1.0)
    assert scores.intervals["ball_x"] == (1.0, 1.0)
    np.testing.assert_array_equal(predictions["flag"], task.labels["flag"][task.split.test])


@PROTOCOLS
def test_noise_scores_what_the_majority_or_chance_does(protocol: Any) -> None:
    task = fakes.uneven_task()
    noise = np.random.default_rng(1).normal(size=(len(task.episode_ids), 8)).astype(np.float32)
    scores, _ = probe_features(noise, task, protocol=protocol)
    floor = majority_scores(task)
    for name in task.labels:
        assert scores.variables[name].accuracy < floor.variables[name].accuracy + 0.03
        assert scores.variables[name].f1_weighted == pytest.approx(
            floor.variables[name].f1_weighted, abs=0.05
        )


def _scores_at(scale: float, protocol: Any, offset: float = 0.0) -> ProbeScores:
    task = fakes.task()
    mixing = np.random.default_rng(0).normal(size=(14, 20))
    features = (fakes.one_hot(task) @ mixing * scale + offset).astype(np.float32)
    return probe_features(features, task, protocol=protocol)[0]


@PROTOCOLS
def test_a_linear_code_of_the_labels_is_read(protocol: Any) -> None:
    assert _scores_at(1.0, protocol, offset=3.0).mean.f1_weighted == 1.0


def test_rescaled_features_change_the_published_score_and_not_the_converged() -> None:
    small, large = 2.0**-7, 1.0
    published = Anand2019(learning_rate=1e-2, max_epochs=30)
    assert _scores_at(small, published).mean.f1_weighted < 0.5
    assert _scores_at(large, published).mean.f1_weighted > 0.9
    assert _scores_at(small, "converged").variables == _scores_at(large, "converged").variables
