"""Scales, and what is no set of scores."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from rl_infonce.report.run_scores import (
    check_same_tasks,
    checked_scores,
    normalized,
    paired_differences,
)


def test_random_is_0_and_the_reference_1() -> None:
    scales = {"pong": (-20.7, 14.6), "boxing": (0.1, 12.1), "other": (0.0, 0.0)}
    found = normalized({"pong": [[-20.7, 14.6]], "boxing": [[6.1, 24.1, 0.1]]}, scales)
    assert found.keys() == {"pong", "boxing"}
    np.testing.assert_allclose(found["pong"], [[0.0, 1.0]])
    np.testing.assert_allclose(found["boxing"], [[0.5, 2.0, 0.0]])


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"qbert": (0.0, 1.0)}, r"`scales` to hold 'pong', got \['qbert'\]"),
        ({"pong": (math.nan, 1.0)}, r"`scales\['pong'\]\[0\]` to be a finite number"),
        ({"pong": (1.0, 1.0)}, r"`scales\['pong'\]\[1\]` to be a finite number > 1"),
    ],
)
def test_a_scale_without_its_ends_is_named(
    scales: dict[str, tuple[float, float]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        normalized({"pong": [0.0]}, scales)


def test_differences_are_those_of_runs_with_the_same_place() -> None:
    x: dict[str, Any] = {"a": [1, 2, 3], "b": [5, 5]}
    found = paired_differences(x, {"b": [1, 2], "a": [3, 2, 1]})
    assert {task: values.tolist() for task, values in found.items()} == {
        "a": [-2.0, 0.0, 2.0],
        "b": [4.0, 3.0],
    }
    with pytest.raises(ValueError, match=r"same runs of 'b', got shapes \(2,\) and \(3,\)\. Keep"):
        paired_differences(x, {"a": [1, 2, 3], "b": [1, 2, 3]})


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "`x` to hold at least one task, got none"),
        ({"a": [1.0, 2.0], "b": []}, r"at least 1 runs in `x\['b'\]`, got 0. Train more seeds"),
        (
            {"a": [1.0], "b": [1.0, math.nan, math.inf]},
            r"finite `x\['b'\]`, got 2 NaN or infinite of 3 scores.",
        ),
        ({"a": 1.0}, r"`x\['a'\]` of shape \[n_runs\], got \(\)"),
        ({"a": [[1.0]], "b": [[1.0], [2.0]]}, r"`x\['b'\]` of shape \[1, n_runs\], got \(2, 1\)"),
        ({"a": [[1.0]], "b": [1.0]}, r"`x\['b'\]` of shape \[1, n_runs\], got \(1,\)"),
        ({"a": [[1.0], [1.0, 2.0]]}, r"`x\['a'\]` to be an array of numbers"),
        ({"a": ["x"]}, r"`x\['a'\]` to be an array of numbers, got: could not"),
        ({"a": torch.ones(2, requires_grad=True)}, r"array of numbers, got: .*detach\(\)"),
    ],
)
def test_what_are_no_scores_is_named(scores: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_scores("x", scores)


def test_scores_are_a_mapping_and_the_demanded_number_of_runs_is_that_of_each_task() -> None:
    with pytest.raises(TypeError, match="`x` to map tasks to scores, got list"):
        checked_scores("x", [1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got ndarray\. Pass x=\{'task': \.\.\.\}"):
        checked_scores("x", np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"at least 3 runs in `scores\['b'\]`, got 2"):
        checked_scores("scores", {"a": [1, 2, 3], "b": [1, 2]}, 3)


def test_tasks_that_only_one_arm_has_are_named() -> None:
    check_same_tasks({"a": 1, "b": 2}, {"b": 1, "a": 2})
    with pytest.raises(ValueError, match=r"got \['a'\] in `x` only and \['c', 'd'\] in `y` only"):
        check_same_tasks({"a": 1, "b": 2}, {"d": 1, "b": 2, "c": 3})
