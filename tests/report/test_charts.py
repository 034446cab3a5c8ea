"""Curves of arms: told apart without colour, on axes that hold them."""

from __future__ import annotations

import re

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
