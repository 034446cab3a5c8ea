"""Figures without pyplot: no global state, no window, no display needed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS_PER_INCH = 100


def has_matplotlib() -> bool:
    """Return whether the extra `plots` is installed."""
    return find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, 100 pixels each, that fits its contents."""
    module = import_extra("matplotlib.figure", "plots")
    size = (width, height)
    figure: Figure = module.Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
    return figure


def rendered(figure: Figure) -> npt.NDArray[np.uint8]:
    """Return the picture of a figure, uint8 [H, W, 3]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    pixels: npt.NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    return pixels
