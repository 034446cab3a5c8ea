"""Curves of arms: told apart without colour, on axes that hold them."""

import re
from typing import Any

import numpy as np
import pytest

from rl_infonce.report.charts import curves_svg, line_style

pytest.importorskip("matplotlib")


def test_the_axes_hold_the_runs_and_not_the_band() -> None:
    steps = np.linspace(0, 200_000, 41)
    values = np.stack([np.full(41, 10.0), np.full(41, 30.0)], axis=1)
    svg = curves_svg(
        "x", {"a": (steps, values)}, ylabel="y", order=["a"], rng=np.random.default_rng(0)
    )
    labels = re.findall(r"<!-- (\S+) -->", svg)
    assert {"0", "200k"} <= set(labels)
    heights = [float(label) for label in labels if re.fullmatch(r"[\d.]+", label)]
    assert 25 <= max(heights) <= 31
    assert svg.count("stroke-width: 0.6") == 2


def test_the_mean_of_several_runs_has_a_band_and_a_single_run_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[Any, ...]] = []
    fill = Axes.fill_between

    def noted(self: Axes, *arguments: Any, **style: Any) -> Any:
        drawn.append((*arguments, style["color"]))
        return fill(self, *arguments, **style)

    monkeypatch.setattr(Axes, "fill_between", noted)
    steps = np.arange(10.0)
    runs = steps[:, None] + np.random.default_rng(0).normal(scale=1 + steps[:, None], size=(10, 6))
    runs[0, 2] = np.nan
    curves = {"several": (steps, runs), "single": (steps, runs[:, :1])}
    curves_svg("x", curves, ylabel="y", order=["single", "several"], rng=np.random.default_rng(0))
    ((of_steps, low, high, colour),) = drawn
    np.testing.assert_array_equal(of_steps, steps[1:], "no band where a run has no value yet")
    assert colour == line_style(1)["color"]
    known = runs[1:]
    # The t interval, within what 500 resamples scatter by.
    half = 2.571 * known.std(axis=1, ddof=1) / np.sqrt(6)
    np.testing.assert_allclose(high - known.mean(axis=1), half, rtol=0.35)
    np.testing.assert_allclose(known.mean(axis=1) - low, half, rtol=0.35)


def test_arms_differ_without_colour() -> None:
    styles = [line_style(index) for index in range(64)]
    assert len({(str(style["linestyle"]), style["marker"]) for style in styles}) == 64
    arms = [f"arm {index}" for index in range(10)]
    steps = np.arange(40.0)
    curves = {arm: (steps, steps[:, None] + index) for index, arm in enumerate(arms)}
    svg = curves_svg("x", curves, ylabel="y", order=arms, rng=np.random.default_rng(0))
    gray = re.sub(r"#[0-9a-f]{6}", "#808080", svg)
    drawn = set()
    for group in re.findall(r'<g id="line2d_\d+">(.*?)\n   </g>', gray, re.DOTALL):
        line = re.search(r'<path [^>]*clip-path[^>]* style="([^"]*stroke-width: 1.5[^"]*)"', group)
        marker = re.search(r'<use xlink:href="#(\w+)"', group)
        if line and marker:
            drawn.add((line[1], marker[1]))
    assert len(drawn) == len(arms)
