"""Curves of one run against loops over windows and episodes."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_infonce.report.curves import area_under_curve, final_return, return_curve

N_STEPS = 12
EPISODES = st.lists(
    st.tuples(st.integers(1, 15), st.integers(-50, 50)), max_size=12
).map(sorted)  # fmt: skip


def by_definition(episodes: list[tuple[int, int]], n_windows: int) -> list[float]:
    """Return the curve, window after window, in exact arithmetic."""
    curve: list[float] = []
    for i in range(n_windows):
        ended = [
            value for step, value in episodes if i * N_STEPS < step * n_windows <= (i + 1) * N_STEPS
        ]
        before = curve[-1] if curve else math.nan
        curve.append(sum(ended) / len(ended) if ended else before)
    return curve


def parts(episodes: list[tuple[int, int]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in episodes], [float(value) for _, value in episodes]


@settings(max_examples=100, deadline=None)
@given(EPISODES, st.integers(1, N_STEPS))
def test_the_curve_is_the_mean_of_each_window(
    episodes: list[tuple[int, int]], n_windows: int
) -> None:
    found = return_curve(*parts(episodes), N_STEPS, n_windows, n_steps_done=15)
    np.testing.assert_allclose(found, by_definition(episodes, n_windows))


@settings(max_examples=100, deadline=None)
@given(EPISODES.filter(lambda episodes: bool(episodes) and episodes[0][0] <= N_STEPS))
def test_the_area_is_the_mean_of_the_curve_with_its_start_filled(
    episodes: list[tuple[int, int]],
) -> None:
    known = by_definition(episodes, N_STEPS)
    first = next(value for value in known if not math.isnan(value))
    expected = sum(first if math.isnan(value) else value for value in known) / N_STEPS
    steps, returns = parts(episodes)
    found = area_under_curve(steps, returns, N_STEPS, n_steps_done=15, n_windows=N_STEPS)
    assert found == pytest.approx(expected)


def test_the_area_gives_each_part_of_the_budget_the_same_weight() -> None:
    # 90 short bad episodes in the first half, one long good one in the second
    steps, returns = [*range(1, 91), 200], [0.0] * 90 + [10.0]
    assert area_under_curve(steps, returns, 200, n_steps_done=200, n_windows=2) == 5.0


def test_windows_without_episodes_take_the_one_before_and_the_first_takes_none() -> None:
    curve = return_curve([5, 6, 20], [1.0, 3.0, 7.0], 24, 6, n_steps_done=24)
    np.testing.assert_array_equal(curve, [math.nan, 2.0, 2.0, 2.0, 7.0, 7.0])
    assert area_under_curve(
        [5, 6, 20], [1.0, 3.0, 7.0], 24, n_steps_done=24, n_windows=6
    ) == pytest.approx((2 * 4 + 7 * 2) / 6)


def test_a_run_without_episodes_has_a_curve_without_values() -> None:
    assert np.isnan(return_curve([], [], 10, 2, n_steps_done=10)).all()


def test_episodes_beyond_the_budget_do_not_count() -> None:
    steps, returns = [9, 10, 11], [1.0, 3.0, 99.0]
    assert return_curve(steps, returns, 10, 1, n_steps_done=11).tolist() == [2.0]
    assert area_under_curve(steps, returns, 10, n_steps_done=11, n_windows=1) == 2.0
    assert final_return(steps, returns, 10, n_steps_done=11, share=0.2) == 2.0


@pytest.mark.parametrize(
    ("share", "expected"), [(0.1, 8.0), (0.11, 14 / 3), (0.9, 14 / 3), (0.91, 3.5), (1.0, 3.5)]
)
def test_the_final_return_is_that_of_the_last_part(share: float, expected: float) -> None:
    # the last tenth begins after step 90, the last nine tenths after step 10
    steps, returns = [10, 90, 91, 100], [0.0, -2.0, 6.0, 10.0]
    found = final_return(steps, returns, 100, n_steps_done=100, share=share)
    assert found == pytest.approx(expected)


def test_many_steps_do_not_overflow() -> None:
    n_steps = 10**12
    curve = return_curve([n_steps], [1.0], n_steps, 1000, n_steps_done=n_steps)
    assert np.flatnonzero(~np.isnan(curve)).tolist() == [999]


GOOD: dict[str, Any] = {"steps": [1, 5], "returns": [0.0, 1.0], "n_steps": 10, "n_steps_done": 10}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"steps": [[1, 5]]}, ValueError, r"`steps` of shape \[E\]"),
        ({"returns": [1.0]}, ValueError, r"`returns` of shape \[2\], got \(1,\)"),
        ({"steps": [1.0, 5.0]}, TypeError, "`steps` to hold integers, got float64"),
        ({"steps": [5, 1]}, ValueError, "`steps` that never fall.*Sort the episodes"),
        ({"returns": [0.0, math.nan]}, ValueError, "finite `returns`"),
        ({"n_steps": 10.0}, TypeError, "`n_steps` to be an integer, got 10.0"),
        ({"n_steps": True}, TypeError, "`n_steps` to be an integer, got True"),
        ({"n_steps": 0}, ValueError, "`n_steps` to be a finite number >= 1, got 0"),
        ({"n_steps_done": 9.5}, TypeError, "`n_steps_done` to be an integer"),
        (
            {"n_steps_done": 9},
            ValueError,
            "at least `n_steps`=10 steps, got `n_steps_done`=9. Train it to the end",
        ),
        ({"steps": [0, 5]}, ValueError, r"in \[1, n_steps_done=10\], got 0 to 5"),
        ({"steps": [1, 11]}, ValueError, r"in \[1, n_steps_done=10\], got 1 to 11"),
    ],
)
def test_bad_input_is_named_by_all(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = GOOD | change
    with pytest.raises(error, match=message):
        return_curve(**arguments, n_windows=2)
    with pytest.raises(error, match=message):
        area_under_curve(**arguments, n_windows=2)
    with pytest.raises(error, match=message):
        final_return(**arguments, share=1.0)


def test_bad_windows_and_shares_are_named() -> None:
    with pytest.raises(ValueError, match="`n_windows` to be a finite number >= 1 and <= 10"):
        return_curve(**GOOD, n_windows=11)
    with pytest.raises(ValueError, match="`share` to be a finite number > 0 and <= 1, got 0"):
        final_return(**GOOD, share=0)


def test_what_no_episode_tells_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"within `n_steps`=10, got none\. Leave the run out"):
        area_under_curve([], [], 10, n_steps_done=10, n_windows=2)
    with pytest.raises(ValueError, match=r"ended in the steps \(9, 10\], got none. Raise `share`"):
        final_return(**GOOD)
