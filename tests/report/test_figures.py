"""Figures say what the numbers say, where the numbers say it."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from rl_infonce.probing import ProbeScores, Score
from rl_infonce.report.overlay import (
    PREDICTED_COLOUR,
    TRUE_COLOUR,
    Place,
    objects_of,
    prediction_overlay,
)
from rl_infonce.report.probe_figures import grouped_variables, probe_heat_map, probe_table_figure
from rl_infonce.report.rendering import new_figure, rendered
from rl_infonce.report.similarity_figure import similarity_figure

CATEGORIES = {"ball_x": ("small",), "ball_y": ("small",), "clock": ("small", "score"), "odd": ()}


def scores(**f1: float) -> ProbeScores:
    variables = {name: Score(value, 0.0, 0.0) for name, value in f1.items()}
    categories = {"small": Score(0.33, 0.0, 0.0), "score": Score(0.44, 0.0, 0.0)}
    not_probed = {"lives": "entropy of 0.1 nats, below 0.6", "level": "entropy of 0.1 nats, x"}
    parts = dict.fromkeys(("train", "validation", "test"), 1)
    mean = Score(0.55, 0.0, 0.0)
    return ProbeScores("converged", mean, categories, variables, {}, not_probed, parts, parts, {})


NOW = scores(ball_x=0.1, ball_y=0.2, clock=0.3, odd=0.4)
UNTRAINED = scores(ball_x=0.11, ball_y=0.21, clock=0.31, odd=0.41)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_variables_stand_under_each_of_their_categories() -> None:
    assert grouped_variables(NOW, CATEGORIES) == {
        "small": ["ball_x", "ball_y", "clock"],
        "score": ["clock"],
        "other": ["odd"],
    }


def test_the_table_has_a_row_per_variable_category_and_mean() -> None:
    figure = probe_table_figure({"now": NOW, "untrained": UNTRAINED}, CATEGORIES, title="pong")
    (axes,) = figure.axes
    names = [label.get_text().strip() for label in axes.get_yticklabels()]
    assert names == [
        "mean", "small", "ball_x", "ball_y", "clock", "score", "clock", "other", "odd"
    ]  # fmt: skip
    cells = np.array(texts(figure)).reshape(len(names), 2)
    assert list(cells[names.index("ball_y")]) == ["0.20", "0.21"]
    assert list(cells[names.index("mean")]) == ["0.55", "0.55"]
    assert list(cells[names.index("other")]) == ["-", "-"]  # no average of what has no category
    # two variables, one reason
    assert figure.get_supxlabel() == "not probed: lives, level (entropy of 0.1 nats)"


def test_the_heat_map_has_a_row_per_variable_and_a_column_per_step() -> None:
    history = [(0, UNTRAINED), (1000, NOW)]
    figure = probe_heat_map(history, CATEGORIES, untrained=UNTRAINED)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(NOW.variables)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["untrained", "0", "1,000"]
    expected = np.array(
        [[0.11, 0.11, 0.1], [0.21, 0.21, 0.2], [0.31, 0.31, 0.3], [0.41, 0.41, 0.4]]
    )
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), expected)


def test_a_long_heat_map_stays_readable() -> None:
    figure = probe_heat_map([(step, NOW) for step in range(100)], CATEGORIES)
    axes = figure.axes[0]
    assert len(axes.get_xticks()) <= 12
    assert texts(figure) == []
    assert figure.get_figwidth() < 14


def test_objects_take_their_axes_from_the_names() -> None:
    here = np.zeros(1)
    places = {
        name: Place(name.split("_")[-1][0] if name != "car_x_3" else "x", here, here)
        for name in ("ball_x", "ball_y", "player_y", "car_x_3")
    }
    found = {name: [place.axis for place in group] for name, group in objects_of(places).items()}
    assert found == {"ball": ["x", "y"], "player": ["y"], "car_3": ["x"]}


def test_marks_stand_where_the_object_is_in_the_scaled_frame() -> None:
    frames = np.zeros((1, 84, 84), np.uint8)
    # the middle of the screen is the middle of the frame, and its edges the frame's edges
    true, predicted = np.array([79.5]), np.array([-0.5])
    places = {
        "ball_x": Place("x", true, predicted),
        "ball_y": Place("y", np.array([104.5]), np.array([209.5])),
    }
    values: dict[str, Any] = {"ball_x": np.array([1]), "ball_y": np.array([2]), "n": np.array([3])}
    figure = prediction_overlay(
        frames, values, values | {"n": np.array([4])}, places, screen_shape=(210, 160)
    )
    ring, cross = figure.axes[0].lines
    assert (ring.get_marker(), ring.get_color()) == ("o", TRUE_COLOUR)
    assert (cross.get_marker(), cross.get_color()) == ("x", PREDICTED_COLOUR)
    np.testing.assert_allclose(np.asarray(ring.get_xydata()), [[41.5, 41.5]])
    np.testing.assert_allclose(np.asarray(cross.get_xydata()), [[-0.5, 83.5]])
    assert texts(figure) == ["n 4 / 3"]  # predicted / true; what is drawn is not written
    shapes = "ring, line: true (green)    cross, dashes: predicted (red)"
    assert shapes in figure.get_suptitle(), "readable without colour"


def test_the_margin_shows_what_is_wrong_first_and_counts_the_rest() -> None:
    labels = {f"v{i}": np.array([i, i]) for i in range(12)}
    predictions = labels | {"v9": np.array([0, 9])}
    frames = np.zeros((2, 8, 8), np.uint8)
    figure = prediction_overlay(frames, labels, predictions, {}, screen_shape=(8, 8))
    first, second = ([text.get_text() for text in axes.texts] for axes in figure.axes[:2])
    assert first[0] == "v9 0 / 9"
    assert second[0] == "v0 0 / 0"
    assert first[-1] == "and 5 more"


def test_the_similarity_picture_shows_both_stretches_and_the_average() -> None:
    rng = np.random.default_rng(0)
    same, other = rng.normal(size=(2, 6, 5))
    frames = rng.integers(0, 255, (2, 5, 9, 9), dtype=np.uint8)
    figure = similarity_figure(frames[0], frames[1], same, other, horizon=2, title="pong")
    shown = figure.axes
    np.testing.assert_array_equal(np.asarray(shown[1].images[0].get_array()), same[:1])
    np.testing.assert_array_equal(np.asarray(shown[3].images[0].get_array()), other[:1])
    strip = np.asarray(shown[0].images[0].get_array()).reshape(9, 5, 11)
    np.testing.assert_array_equal(strip[:, :, 1:-1].transpose(1, 0, 2), frames[0])
    np.testing.assert_allclose(np.asarray(shown[4].lines[0].get_ydata()), same.mean(0))
    np.testing.assert_allclose(np.asarray(shown[4].lines[1].get_ydata()), other.mean(0))
    assert shown[4].lines[2].get_xdata() == [2, 2]
    looks = [(str(line.get_marker()), str(line.get_linestyle())) for line in shown[4].lines[:2]]
    assert looks == [("o", "-"), ("s", "--")], "told apart without colour"


def test_a_figure_becomes_a_picture_without_pyplot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    figure = new_figure(2.0, 1.0)
    figure.text(0.5, 0.5, "here")
    picture = rendered(figure)
    assert picture.shape == (100, 200, 3)
    assert picture.dtype == np.uint8
    assert picture.min() < 100 < picture.max()


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "rl-infonce\[plots\]"'):
        new_figure(1.0, 1.0)
