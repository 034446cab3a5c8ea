"""The performance profile of the arms of an algorithm: how many runs score above any level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from rl_infonce.report.aggregates import performance_profile
from rl_infonce.report.bootstrap import bootstrap_band
from rl_infonce.report.charts import Chart, line_style, svg_of
from rl_infonce.report.rendering import new_figure
from rl_infonce.report.run_scores import Scales, normalized
from rl_infonce.report.runs import Run, arms_of, scores_by_arm

FloatArray = npt.NDArray[np.float64]

HOW_READ = (
    "At each level of the mean return over the budget, the share of an arm's runs that score above "
    "it, averaged over games (Agarwal et al. 2021). An arm whose line lies above another's "
    "everywhere is better at every quantile; where lines cross, it depends on what is asked. Bands "
    "are 95 % bootstrap intervals for other seeds of these games, too narrow for few."
)
NOT_DRAWN = (
    "No profile is drawn: it takes two arms with two runs or more of every game, and one unit for "
    "the scores of all games."
)
_N_LEVELS = 101


def profile_chart(
    runs: Sequence[Run], algo: str, scales: Scales | None, rng: np.random.Generator
) -> Chart | None:
    """Return the profile of the arms that have at least two runs of every game.

    It is None where fewer than two arms have, or raw scores of several games would be mixed.
    """
    own = [run for run in runs if run.algo == algo]
    games = sorted({run.game for run in own})
    if len(games) > 1 if scales is None else not set(games) <= scales.keys():
        return None
    arms = _on_one_scale(own, algo, games, scales)
    if len(arms) < 2:
        return None
    left_out = [arm for arm in arms_of(own) if arm not in arms]
    note = f"Without a profile, for want of runs: {', '.join(left_out)}." if left_out else ""
    xlabel = "mean return over the budget" + ("" if scales is None else ", normalised")
    svg = profile_svg(arms, xlabel=xlabel, order=arms_of(runs), rng=rng)
    return Chart(f"performance profile of {', '.join(arms)}", svg, note)


def _on_one_scale(
    own: Sequence[Run], algo: str, games: Sequence[str], scales: Scales | None
) -> dict[str, Mapping[str, npt.ArrayLike]]:
    """Return the scores of the arms that have at least two runs of every game."""
    by_arm = scores_by_arm(own, algo, "area")
    arms: dict[str, Mapping[str, npt.ArrayLike]] = {}
    for arm in arms_of(own):
        scores = {game: list(by_arm.get(arm, {}).get(game, {}).values()) for game in games}
        if min(map(len, scores.values())) >= 2:
            arms[arm] = scores if scales is None else normalized(scores, scales)
    return arms


def profile_svg(
    arms: Mapping[str, Mapping[str, npt.ArrayLike]],
    *,
    xlabel: str,
    order: Sequence[str],
    rng: np.random.Generator,
) -> str:
    """Return a chart of the share of runs above each level, with 95 % bands.

    `arms` maps a name to scores [n_runs] of each game; `order` names all arms of the report, so
    that each looks as in the other charts.
    """
    figure = new_figure(4.6, 3.2)
    axes = figure.subplots()
    every = np.concatenate([np.ravel(each) for scores in arms.values() for each in scores.values()])
    margin = 0.05 * max(float(np.ptp(every)), 1e-9)
    levels = np.linspace(every.min() - margin, every.max() + margin, _N_LEVELS)
    for arm, scores in arms.items():
        style = line_style(order.index(arm))
        profile = partial(performance_profile, thresholds=levels)
        band = bootstrap_band(scores, profile, rng=rng, n_resamples=500)
        label = arm.replace("$", r"\$")  # which would begin a formula
        axes.plot(levels, band.value, **style, markevery=10, drawstyle="steps-post", label=label)
        axes.fill_between(
            levels, band.low, band.high, step="post", color=style["color"], alpha=0.15, lw=0
        )
    axes.set(xlabel=xlabel, ylabel="share of runs above it", ylim=(-0.03, 1.03))
    axes.legend(fontsize="small", handlelength=3.5)
    axes.grid(alpha=0.3)
    return svg_of(figure, "performance profile")
