from __future__ import annotations

import itertools
import math

import pytest

from rl_infonce.pretraining.budget import Budget, learning_rate_factor, parse_budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("10m", Budget(seconds=600)),
        ("1.5h", Budget(seconds=5400)),
        (" 90 s", Budget(seconds=90)),
        ("5000", Budget(n_steps=5000)),
    ],
)
def test_budgets_are_read(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "0", "0m", "-5", "5d", "1.5", "ten", "m", "1e3"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r'"10m", "1.5h", "90s" or "5000"'):
        parse_budget(text)


def test_learning_rate_rises_and_falls_to_nothing() -> None:
    factors = [learning_rate_factor(step, 100, warmup=0.1) for step in range(101)]
    assert factors[:10] == pytest.approx([(i + 1) / 11 for i in range(10)])
    assert factors[10] == 1
    assert factors[55] == pytest.approx((1 + math.cos(math.pi / 2)) / 2)
    assert factors[100] == pytest.approx(0)
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[10:]))
    assert learning_rate_factor(0, 1) > 0
