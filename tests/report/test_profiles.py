"""Performance profiles: which arms have one, and that the lines drawn are the shares."""

from typing import Any

import numpy as np
import pytest

from rl_infonce.report.aggregates import performance_profile
from rl_infonce.report.profiles import profile_chart
from rl_infonce.report.run_scores import normalized
from rl_infonce.report.runs import Run, scores_by_arm
from tests.report.test_report import RUNS, SCALES, run

pytest.importorskip("matplotlib")


def chart_of(runs: list[Run], scales: Any = SCALES) -> Any:
    return profile_chart(runs, "ppo", scales, np.random.default_rng(0))


def test_lines_are_the_shares_of_runs_above_each_level(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: dict[str, Any] = {}
    plot = Axes.plot

    def noted(self: Axes, *arguments: Any, **style: Any) -> Any:
        drawn[style["label"]] = arguments
        return plot(self, *arguments, **style)

    monkeypatch.setattr(Axes, "plot", noted)
    chart = chart_of(RUNS)
    assert chart.text == "performance profile of baseline, infonce, placebo"
    assert chart.svg.startswith("<svg")
    assert set(drawn) == {"baseline", "infonce", "placebo"}
    for arm, (levels, shares) in drawn.items():
        by_game = scores_by_arm(RUNS, "ppo", "area")[arm]
        own = normalized({game: list(each.values()) for game, each in by_game.items()}, SCALES)
        assert np.array_equal(shares, performance_profile(own, levels))
        assert shares[0] == 1
        assert shares[-1] == 0


def test_an_arm_with_one_run_of_a_game_is_left_out_by_name() -> None:
    few = [each for each in RUNS if each.arm != "placebo" or each.seed == 0 or each.game == "pong"]
    chart = chart_of(few)
    assert chart.text == "performance profile of baseline, infonce"
    assert chart.note == "Without a profile, for want of runs: placebo."


@pytest.mark.parametrize(
    ("runs", "scales"),
    [
        ([each for each in RUNS if each.seed == 0], SCALES),
        ([each for each in RUNS if each.arm == "baseline"], SCALES),
        (RUNS, None),
        (RUNS, {"pong": SCALES["pong"]}),
    ],
)
def test_there_is_none_of_single_runs_or_of_mixed_scales(runs: list[Run], scales: Any) -> None:
    assert chart_of(runs, scales) is None


def test_raw_scores_of_one_game_have_one() -> None:
    runs = [run("pong", arm, seed) for arm in ("baseline", "infonce") for seed in range(2)]
    assert chart_of(runs, None) is not None
