"""Predicted and true values of a probe, drawn on the frames they belong to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.report.rendering import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Mapping[str, npt.NDArray[Any]]

TRUE_COLOUR = "#2ca25f"
PREDICTED_COLOUR = "#f03b20"
_N_COLUMNS = 3
_LINES_IN_MARGIN = 7


class Place(NamedTuple):
    """Where an object is along one axis, "x" or "y", and where a probe says that it is.

    `true` and `predicted` are [B] pixels of the screen.
    """

    axis: str
    true: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]


def objects_of(places: Mapping[str, Place]) -> dict[str, list[Place]]:
    """Return object to its one or two places: those of "ball_x" and "ball_y" for "ball"."""
    objects: dict[str, list[Place]] = {}
    for variable, place in places.items():
        name = re.sub(rf"_{place.axis}(?=_|$)", "", variable, count=1)
        objects.setdefault(name, []).append(place)
    return objects


def prediction_overlay(
    frames: npt.NDArray[np.uint8],
    labels: Values,
    predictions: Values,
    places: Mapping[str, Place],
    *,
    screen_shape: tuple[int, int],
    title: str = "",
) -> Figure:
    """Return frames with a ring where each object is and a cross where the probe puts it.

    An object with one known coordinate is a line across the frame, with its name. Variables without
    a place stand in the margin, predicted / true, those that are wrong first. `frames` are [B, H,
    W] gray and may be scaled from the screen, whose height and width in pixels is `screen_shape`.
    """
    n_columns = min(_N_COLUMNS, len(frames))
    n_rows = -(-len(frames) // n_columns)
    written = [name for name in predictions if name not in places]
    n_lines = min(len(written), _LINES_IN_MARGIN + 1)
    figure = new_figure(2.6 * n_columns, (2.6 + 0.2 * n_lines) * n_rows + 0.6)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).flatten()
    scale = {"x": frames.shape[2] / screen_shape[1], "y": frames.shape[1] / screen_shape[0]}
    for panel in panels:
        panel.set_axis_off()
    for index, panel in enumerate(panels[: len(frames)]):
        panel.imshow(frames[index], cmap="gray", vmin=0, vmax=255)
        for name, places_of_object in objects_of(places).items():
            _draw_object(panel, name, places_of_object, index, scale)
        panel.set_xlim(-0.5, frames.shape[2] - 0.5)
        panel.set_ylim(frames.shape[1] - 0.5, -0.5)
        _write_margin(
            panel, [(n, int(predictions[n][index]), int(labels[n][index])) for n in written]
        )
    legend = "ring, line: true (green)    cross, dashes: predicted (red)"
    figure.suptitle(f"{title}\n{legend}".strip(), fontsize=11)
    return figure


def _draw_object(
    panel: Axes, name: str, places: Sequence[Place], index: int, scale: Mapping[str, float]
) -> None:
    for which, colour, marker in (("true", TRUE_COLOUR, "o"), ("predicted", PREDICTED_COLOUR, "x")):
        # +0.5: from the index of a pixel to its middle, and back after scaling
        at = {
            place.axis: (getattr(place, which)[index] + 0.5) * scale[place.axis] - 0.5
            for place in places
        }
        if len(at) == 2:
            style: dict[str, Any] = {"markersize": 11, "markeredgewidth": 1.8}
            panel.plot(at["x"], at["y"], marker, color=colour, markerfacecolor="none", **style)
            continue
        line: dict[str, Any] = {"color": colour, "linewidth": 1.2}
        line["linestyle"] = "-" if which == "true" else "--"
        written = name if which == "true" else ""
        text: dict[str, Any] = {"color": colour, "fontsize": 8, "clip_on": True}
        if "x" in at:
            panel.axvline(at["x"], **line)
            across = panel.get_xaxis_transform()
            panel.text(at["x"], 0.99, written, transform=across, rotation=90, va="top", **text)
        else:
            panel.axhline(at["y"], **line)
            panel.text(0.01, at["y"], written, transform=panel.get_yaxis_transform(), **text)


def _write_margin(panel: Axes, values: Sequence[tuple[str, int, int]]) -> None:
    """Write name, predicted and true value below a frame."""
    ordered = sorted(values, key=lambda value: value[1] == value[2])
    lines = [
        (f"{name} {predicted} / {true}", TRUE_COLOUR if predicted == true else PREDICTED_COLOUR)
        for name, predicted, true in ordered[:_LINES_IN_MARGIN]
    ]
    if len(ordered) > _LINES_IN_MARGIN:
        lines.append((f"and {len(ordered) - _LINES_IN_MARGIN} more", "gray"))
    for line, (text, colour) in enumerate(lines):
        place = (0.0, -0.02 - 0.07 * line)
        panel.text(*place, text, color=colour, transform=panel.transAxes, va="top", fontsize=8)
