import itertools
import math

import pytest

from rl_infonce.pretraining.budget import (
    Budget,
    check_budget,
    has_time_to_validate,
    learning_rate_factor,
    next_validation,
    parse_budget,
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
    factors = [learning_rate_factor(step, 500) for step in range(501)]
    assert factors[:10] == pytest.approx([(i + 1) / 11 for i in range(10)])
    assert factors[10] == 1
    assert factors[255] == pytest.approx((1 + math.cos(math.pi / 2)) / 2)
    assert factors[500] == pytest.approx(0)
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[10:]))
    assert learning_rate_factor(0, 1) > 0


@pytest.mark.parametrize("n_steps", [1, 5, 39, 40, 41, 73, 79, 119, 4000])
def test_validations_are_spread_and_the_last_is_at_the_end(n_steps: int) -> None:
    step, n_left, at = 0, 40, []
    while step < n_steps:
        step, n_left = next_validation(step, n_left, n_steps), n_left - 1
        at.append(step)
    assert next_validation(step, n_left, n_steps) == step
    assert len(at) == min(n_steps, 40)
    assert at[-1] == n_steps
    gaps = [later - earlier for earlier, later in itertools.pairwise([0, *at])]
    assert max(gaps) - min(gaps) <= 1


def test_validations_have_a_fifth_of_the_time() -> None:
    assert has_time_to_validate(100, 15, 5)
    assert not has_time_to_validate(99, 15, 5)
    assert has_time_to_validate(1, 0, 0), "what the first one takes is not known"
