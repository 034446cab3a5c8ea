"""Runs at equal wall-clock: cut by hand, and compared."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_infonce.report.runs import Run
from rl_infonce.report.wall_clock import at_equal_time, scores_at_equal_time
from tests.report import test_report

TAKES = "takes this many times the seconds of baseline, a median by game"


def run(arm: str, seconds: float, **changes: Any) -> Run:
    """Return a run of 1000 steps whose return after each tenth is its number."""
    given: dict[str, Any] = {
        "steps": np.arange(100, 1001, 100),
        "returns": np.arange(1.0, 11.0),
        "seed": 0,
    }
    return replace(test_report.run("pong", arm, 0), seconds=seconds, **(given | changes))


def test_the_slower_run_is_cut_where_the_faster_one_ended() -> None:
    fast, slow = run("baseline", 20.0), run("infonce", 50.0)
    cut, whole = at_equal_time(slow, fast, 2.5)
    assert (cut.n_steps, whole.n_steps) == (400, 1000)
    assert [each.n_steps for each in at_equal_time(fast, slow, 0.4)] == [1000, 400]


def test_times_are_in_the_median_proportion_of_all_pairs_of_a_game() -> None:
    # one overshot its budget by half, so that the budget took two thirds of its seconds
    of_loss = {"late": run("infonce", 60.0, n_steps_done=1500), "loaded": run("infonce", 100.0)}
    runs = [
        replace(each, seed=seed)
        for seed, slow in enumerate([*of_loss.values(), run("infonce", 20.0)])
        for each in (slow, run("baseline", 20.0))
    ]
    as_fast = [run(arm, 20.0, game="qbert") for arm in ("infonce", "baseline")]
    found = scores_at_equal_time([*runs, *as_fast], "ppo", "infonce", "baseline", "final")
    assert found.notes == [f"{TAKES}: pong 2.00 (3 pairs), qbert 1.00 (1 pair)"]
    assert found.ours == {"pong": dict.fromkeys(range(3), 5.0), "qbert": {0: 10.0}}


def test_scores_are_those_up_to_the_cut() -> None:
    pair = [run("baseline", 20.0), run("infonce", 50.0)]
    alone = run("infonce", 50.0, seed=1)
    timeless = [run(arm, 0.0, seed=2) for arm in ("baseline", "infonce")]
    other = run("baseline", 9.0, algo="dqn", returns=np.full(10, 99.0))
    runs = [*pair, alone, *timeless, other]
    final = scores_at_equal_time(runs, "ppo", "infonce", "baseline", "final")
    assert final.ours == {"pong": {0: 4.0}}
    assert final.theirs == {"pong": {0: 10.0}}
    assert final.notes == [
        f"{TAKES}: pong 2.50 (1 pair)",
        "left out pong seed 2: seconds of training are not known",
        "left out pong seed 1: only one of them has this run",
    ]
    area = scores_at_equal_time(runs, "ppo", "infonce", "baseline", "area")
    # of 100 windows of 4 steps, 49 end before step 200, 25 each before 300 and 400, one at 400
    assert area.ours["pong"][0] == pytest.approx((49 * 1 + 25 * 2 + 25 * 3 + 4) / 100)


def test_a_cut_of_few_steps_has_an_area() -> None:
    slow = run("infonce", 1000.0, steps=np.arange(1, 11))
    short, _ = at_equal_time(slow, run("baseline", 7.0), 1000 / 7)
    assert short.n_steps == 7
    assert short.area == 4.0


def test_pairs_without_an_episode_are_named() -> None:
    silent = {"steps": np.array([100]), "returns": np.array([1.0])}
    pair = [run("baseline", 20.0, **silent), run("infonce", 20.0)]
    found = scores_at_equal_time(pair, "ppo", "infonce", "baseline", "final")
    assert (found.ours, found.theirs) == ({}, {})
    assert found.notes[-1] == "left out pong seed 0: no episode ended in one of the two"
