"""Quadratics of known minima, several at once."""

import pytest
import torch
from torch import Tensor

from rl_infonce.probing import lbfgs
from rl_infonce.probing.lbfgs import BatchedLBFGS

SIZES = [2, 1, 3]
OWNERS = torch.tensor([0, 0, 1, 2, 2, 2])
PENALISED = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)


class Quadratics:
    """Problem v is (x - m)' A (x - m) / 2 of its rows, flattened, with its own A."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.minima = torch.randn(6, 4, generator=generator, dtype=torch.float64)
        self.hessians = []
        for size in SIZES:
            root = torch.randn(4 * size, 4 * size, generator=generator, dtype=torch.float64)
            self.hessians.append(root @ root.T + 0.1 * torch.eye(4 * size, dtype=torch.float64))

    def __call__(self, points: Tensor, which: list[int]) -> tuple[Tensor, Tensor]:
        losses, gradients = [], []
        parts = torch.split(points, [SIZES[index] for index in which])
        for index, part in zip(which, parts, strict=True):
            offset = (part - self.minima[index == OWNERS]).flatten()
            gradient = self.hessians[index] @ offset
            losses.append(offset @ gradient / 2)
            gradients.append(gradient.view_as(part))
        return torch.stack(losses), torch.cat(gradients)

    def minimum(self, index: int, penalty: float) -> Tensor:
        """Solve (A + penalty P) x = A m."""
        rows = self.minima[index == OWNERS]
        shrinkage = torch.diag(penalty * PENALISED.repeat(SIZES[index]))
        right = self.hessians[index] @ rows.flatten()
        solution: Tensor = torch.linalg.solve(self.hessians[index] + shrinkage, right)
        return solution.view_as(rows)


def solver(penalties: list[float]) -> BatchedLBFGS:
    return BatchedLBFGS(
        torch.zeros(6, 4, dtype=torch.float64),
        OWNERS,
        torch.ones(6, 4, dtype=torch.float64),
        torch.tensor(penalties, dtype=torch.float64),
        PENALISED,
    )


def run(solve: BatchedLBFGS, problems: Quadratics, which: list[int], n: int) -> None:
    for _ in range(n):
        solve.tell(*problems(solve.trial_points, which))


def test_minima_of_all_problems_are_found() -> None:
    problems, solve = Quadratics(), solver([0.0, 0.3, 5.0])
    run(solve, problems, [0, 1, 2], 60)
    for index, penalty in enumerate([0.0, 0.3, 5.0]):
        found = solve.points[index == OWNERS]
        torch.testing.assert_close(found, problems.minimum(index, penalty), rtol=1e-5, atol=1e-6)
    assert (solve.expected_decreases < 1e-9).all()


def test_penalties_can_change_on_the_way() -> None:
    problems, solve = Quadratics(), solver([1.0, 1.0, 1.0])
    run(solve, problems, [0, 1, 2], 40)
    solve.set_penalties(torch.tensor([1.0, 0.2, 9.0], dtype=torch.float64))
    assert solve.expected_decreases[0] < 1e-9
    assert (solve.expected_decreases[1:] > 1e-6).all()
    run(solve, problems, [0, 1, 2], 15)  # from nothing it takes several times as many
    for index, penalty in enumerate([1.0, 0.2, 9.0]):
        found = solve.points[index == OWNERS]
        torch.testing.assert_close(found, problems.minimum(index, penalty), rtol=1e-4, atol=1e-4)


def test_objectives_never_rise_and_others_do_not_wait() -> None:
    problems, solve = Quadratics(), solver([0.1, 0.1, 0.1])
    before = torch.full((3,), torch.inf, dtype=torch.float64)
    rejected = 0
    for _ in range(20):
        accepted = solve.tell(*problems(solve.trial_points, [0, 1, 2]))
        rejected += int((~accepted).sum())
        objectives = problems(solve.points, [0, 1, 2])[0]
        for index in range(3):
            squares = (solve.points[index == OWNERS] ** 2 * PENALISED).sum()
            objectives[index] += 0.05 * squares
        assert (objectives <= before + 1e-12).all()
        before = objectives
    assert rejected > 0  # with unit curvature the first steps are too long


def test_problems_left_alone_go_on_as_if_alone() -> None:
    problems, kept = Quadratics(), torch.tensor([True, False, True])
    together, fewer = solver([0.1, 0.1, 0.1]), solver([0.1, 0.1, 0.1])
    for solve in (together, fewer):
        run(solve, problems, [0, 1, 2], 6)
    fewer.keep(kept)
    run(together, problems, [0, 1, 2], 3)
    run(fewer, problems, [0, 2], 3)
    rows = kept[OWNERS]
    torch.testing.assert_close(fewer.points, together.points[rows])
    torch.testing.assert_close(fewer.trial_points, together.trial_points[rows])
    assert fewer.owners.tolist() == [0, 0, 1, 1, 1]


def test_what_was_learned_can_be_handed_on() -> None:
    problems, solve = Quadratics(), solver([0.1, 0.1, 0.1])
    run(solve, problems, [0, 1, 2], 6)
    heir = BatchedLBFGS(
        solve.points,
        OWNERS,
        torch.ones(6, 4, dtype=torch.float64),
        solve.penalties,
        PENALISED,
        pairs=solve.pairs,
    )
    heir.tell(*problems(heir.trial_points, [0, 1, 2]))
    torch.testing.assert_close(heir.expected_decreases, solve.expected_decreases)
    assert [len(pair.step) for pair in solve.pairs_of(2)] == [3] * len(solve.pairs)


@pytest.mark.parametrize("n_pairs", [1, 4])
def test_only_the_latest_pairs_are_kept(n_pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbfgs, "_N_PAIRS", n_pairs)
    problems, solve = Quadratics(), solver([0.1, 0.1, 0.1])
    run(solve, problems, [0, 1, 2], 10)
    assert len(solve.pairs) == n_pairs


def test_a_problem_that_no_step_lowers_is_stuck_and_others_are_not() -> None:
    problems, solve = Quadratics(), solver([0.1, 0.1, 0.1])
    for _ in range(14):
        losses, gradients = problems(solve.trial_points, [0, 1, 2])
        if bool(torch.isfinite(solve.losses[0])):
            losses[0] = solve.losses[0] + 1
        solve.tell(losses, gradients)
    assert solve.is_stuck.tolist() == [True, False, False]
