import itertools
import math
from functools import partial

import pytest

from rl_infonce.pretraining.budget import (
    Budget,
    Schedule,
    check_budget,
    learning_rate_factor,
    parse_budget,
    plan,
)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("10m", Budget(seconds=600)),
        ("1.5h", Budget(seconds=5400)),
        (" 90 s", Budget(seconds=90)),
        ("5000", Budget(n_steps=5000)),
        ("250k frames", Budget(n_frames=250_000)),
        ("64frames", Budget(n_frames=64)),
        ("1.1k frames", Budget(n_frames=1100)),
        ("1.5M frames", Budget(n_frames=1_500_000)),
        ("5000 steps", Budget(n_steps=5000)),
        ("2k steps", Budget(n_steps=2000)),
    ],
)
def test_budgets_are_read(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    "text",
    ["", "0", "0m", "-5", "5d", "1.5", "ten", "m", "1e3", "5k", "1.0005k frames", "0 frames", "1M"],
)
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r'"10m", "1.5h", "90s", "5000 steps"'):
        parse_budget(text)


def test_a_number_alone_is_no_budget() -> None:
    with pytest.raises(TypeError, match=r"to be a Budget, got 100: Budget\(n_steps=...\)"):
        check_budget(100)  # type: ignore[arg-type]


def test_learning_rate_rises_and_falls_to_nothing() -> None:
    factors = [learning_rate_factor(step, 100, warmup=0.1) for step in range(101)]
    assert factors[:10] == pytest.approx([(i + 1) / 11 for i in range(10)])
    assert factors[10] == 1
    assert factors[55] == pytest.approx((1 + math.cos(math.pi / 2)) / 2)
    assert factors[100] == pytest.approx(0)
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[10:]))
    assert learning_rate_factor(0, 1) > 0


@pytest.mark.parametrize("n_steps", [1, 5, 39, 40, 41, 73, 79, 119, 4000])
def test_validations_are_spread_and_the_last_is_at_the_end(n_steps: int) -> None:
    step, n_left, at = 0, 40, []
    while True:
        found = plan(step, n_left, n_steps=n_steps)
        if found.n_validations == 0:
            break
        step, n_left = found.next_validation, found.n_validations - 1
        at.append(step)
    assert len(at) == min(n_steps, 40)
    assert at[-1] == n_steps
    gaps = [later - earlier for earlier, later in itertools.pairwise([0, *at])]
    assert max(gaps) - min(gaps) <= 1


def test_time_is_shared_by_steps_and_validations() -> None:
    timed = partial(plan, 10, seconds_per_step=0.1)
    # 100 s: 40 validations of half a second, and 80 s of steps
    assert timed(40, seconds=100, seconds_per_validation=0.5) == Schedule(810, 40, 30)
    # 40 of 5 s would take all: 4 take a fifth
    assert timed(40, seconds=100, seconds_per_validation=5) == Schedule(810, 4, 210)
    assert timed(7, seconds=-1, seconds_per_validation=5) == Schedule(10, 0, 10)
