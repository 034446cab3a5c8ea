"""Which frames a critic takes for the future of an anchor, as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rl_infonce.report.rendering import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Scores = npt.NDArray[np.floating[Any]]
Images = npt.NDArray[np.uint8]

SAME_COLOUR = "#2171b5"
OTHER_COLOUR = "#737373"
_FRAME_INCHES = 0.72


def similarity_figure(
    same_frames: Images,
    other_frames: Images,
    same_scores: Scores,
    other_scores: Scores,
    *,
    horizon: int,
    title: str = "",
) -> Figure:
    """Return frames and scores of the first anchor, above the average over all anchors.

    `same_frames` [n, H, W] are gray, the first anchor's frame and those 1 to n - 1 steps later;
    `other_frames` are n frames in a row from another episode. The scores are [B, n], of each anchor
    with such frames. The critic was trained `horizon` steps ahead.
    """
    n_anchors, n = same_scores.shape
    figure = new_figure(1.3 + _FRAME_INCHES * n, 5.6)
    axes = figure.subplots(5, 1, sharex=True, height_ratios=[0.75, 0.3, 0.75, 0.3, 2.6])
    ends = (
        float(min(same_scores[0].min(), other_scores[0].min())),
        float(max(same_scores[0].max(), other_scores[0].max())),
    )
    _draw_strip(axes[0], same_frames, "same\nepisode")
    _draw_scores(axes[1], same_scores[0], ends)
    _draw_strip(axes[2], other_frames, "another\nepisode")
    _draw_scores(axes[3], other_scores[0], ends)
    _draw_means(axes[4], same_scores, other_scores, horizon)
    axes[4].set_ylabel(f"score, mean of {n_anchors} anchors\n(band: middle half)", fontsize=9)
    figure.suptitle(f"{title}\nscores of the first anchor (frame 0)".strip(), fontsize=11)
    return figure


def _draw_strip(axes: Axes, frames: Images, name: str) -> None:
    """Draw frames side by side, frame i around x = i, with white gaps."""
    gap = max(frames.shape[2] // 20, 1)
    padded = np.pad(frames, ((0, 0), (0, 0), (gap, gap)), constant_values=255)
    extent = (-0.5, len(frames) - 0.5, 0.0, 1.0)
    strip = np.concatenate(list(padded), axis=1)
    axes.imshow(strip, cmap="gray", vmin=0, vmax=255, extent=extent, aspect="auto")
    axes.set_yticks([0.5], [name], fontsize=9)
    _bare(axes)


def _draw_scores(axes: Axes, scores: Scores, ends: tuple[float, float]) -> None:
    low, high = ends
    extent = (-0.5, len(scores) - 0.5, 0.0, 1.0)
    axes.imshow(scores[None], cmap="Blues", vmin=low, vmax=high, extent=extent, aspect="auto")
    for step, score in enumerate(scores):
        colour = "white" if score > low + 0.6 * (high - low) else "black"
        text = f"{score:.1f}"
        axes.text(step, 0.47, text, ha="center", va="center", fontsize=9, color=colour)
    axes.set_yticks([0.5], ["score"], fontsize=9)
    _bare(axes)


def _draw_means(axes: Axes, same: Scores, other: Scores, horizon: int) -> None:
    steps = range(same.shape[1])
    for scores, colour, style, name in (
        (same, SAME_COLOUR, "o-", "same episode"),
        (other, OTHER_COLOUR, "s--", "another episode"),
    ):
        quarters = np.quantile(scores, [0.25, 0.75], axis=0)
        axes.plot(steps, scores.mean(axis=0), style, color=colour, label=name, markersize=4)
        axes.fill_between(steps, *quarters, color=colour, alpha=0.2, linewidth=0)
    axes.axvline(horizon, color="black", linewidth=0.8, linestyle=":")
    text = f" trained at k = {horizon}"
    axes.text(horizon, 1.0, text, transform=axes.get_xaxis_transform(), va="top", fontsize=9)
    axes.set_xlabel("k: steps after the anchor")
    axes.set_xticks(list(steps))
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)


def _bare(axes: Axes) -> None:
    axes.tick_params(length=0, labelbottom=False)
    axes.spines[:].set_visible(False)
