"""Overlays of a real game: the ring is where the ball is seen."""

from pathlib import Path

import numpy as np
import pytest

from rl_infonce.atari.cache import cached_frames
from rl_infonce.live_probes.probe_figures import overlay_figure, thumbnails
from rl_infonce.probing import make_task

# Pong's field without paddles, in the agent's 84x84 image
ROWS, COLUMNS = slice(16, 76), slice(14, 70)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.atari
def test_rings_are_drawn_around_pongs_ball(tmp_path: Path) -> None:
    labelled = cached_frames("pong", 1600, seed=0, cache_folder=tmp_path).labelled("agent")
    task = make_task(labelled, np.random.default_rng(0))
    test = task.split.test
    predictions = {name: values[test] for name, values in task.labels.items()}
    figure = overlay_figure(labelled, task, predictions, title="")
    shown = test[np.linspace(0, len(test) - 1, 6).astype(int)]
    n_seen = 0
    for axes, frame in zip(figure.axes, thumbnails(labelled.observations, shown), strict=True):
        np.testing.assert_array_equal(np.asarray(axes.images[0].get_array()), frame)
        field = frame[ROWS, COLUMNS].astype(float)
        if field.max() - np.median(field) < 30:
            continue  # the ball is not in play, or at a paddle
        row, column = np.unravel_index(field.argmax(), field.shape)
        ring = next(line for line in axes.lines if line.get_marker() == "o")
        ((x, y),) = np.asarray(ring.get_xydata())
        assert abs(x - (column + COLUMNS.start)) <= 1.0
        assert abs(y - (row + ROWS.start)) <= 1.5
        n_seen += 1
    assert n_seen >= 2


def test_thumbnails_are_the_latest_frames() -> None:
    stacks = np.arange(2 * 4 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4, 4)
    np.testing.assert_array_equal(thumbnails(stacks, np.array([1])), stacks[1:, 3])


def test_thumbnails_of_colours_are_their_mean() -> None:
    red = np.zeros((2, 3, 4, 4), np.uint8)
    red[1, 0, 2] = 255
    found = thumbnails(red, np.array([1]))
    np.testing.assert_array_equal(found, red[1:, 0] // 3)
    assert found.dtype == np.uint8
    grays = thumbnails(red / 255, np.array([1]))
    np.testing.assert_array_equal(grays, red[1:, 0])


def test_thumbnails_of_float_images_use_all_grays() -> None:
    stacks = np.linspace(-1.0, 1.0, 2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    found = thumbnails(stacks, np.array([0, 1]))
    assert (str(found.dtype), found.min(), found.max()) == ("uint8", 0, 255)
    assert thumbnails(np.zeros((1, 1, 2, 2)), np.array([0])).max() == 0
