"""L-BFGS for many independent problems whose gradients come from one product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_SUFFICIENT_DECREASE = 1e-4  # Nocedal and Wright 2006, eq. 3.6a
_SHRINK_STEP = 0.3
_SMALLEST_STEP = 1e-6
_N_PAIRS = 20
_ROUNDING = 1e-9  # error of a mean in float64 of float32 losses


class Pair(NamedTuple):
    """A past step and the change of the loss's gradient along it, each [C, D].

    Both are zero in the rows of a problem that took no such step.
    """

    step: Tensor
    change: Tensor


class _Curvature(NamedTuple):
    """A pair that includes the penalty's share in the change, and the inverse product [V]."""

    step: Tensor
    change: Tensor
    inverse: Tensor


class BatchedLBFGS:
    """Limited-memory BFGS (Nocedal and Wright 2006, algorithm 7.5) for V problems side by side.

    Problem v owns some rows of one matrix [C, D] and minimises loss_v(rows) + penalties[v] / 2 *
    sum(penalised * rows ** 2). `owners` [C] ascends from 0; `curvature` [C, D] > 0 estimates the
    loss's second derivatives, as preconditioner; `penalised` [D] is 1 where the penalty applies,
    else 0; known pairs come oldest first.

    Every problem has its own inner products, step and penalty. All try their next point at once; a
    problem whose point is no better tries a shorter step with the next call, while others go on.
    The loss is kept apart from the penalty, so penalties may change at any time and what was
    learned about the loss stays valid.
    """

    def __init__(
        self,
        start: Tensor,
        owners: Tensor,
        curvature: Tensor,
        penalties: Tensor,
        penalised: Tensor,
        *,
        pairs: Sequence[Pair] = (),
    ) -> None:
        self.points, self.owners, self.curvature = start, owners, curvature
        self.penalties, self.penalised = penalties, penalised
        self.losses = torch.full_like(penalties, torch.inf)
        self.loss_gradients = torch.zeros_like(start)
        self.directions = torch.zeros_like(start)
        self.steps = torch.ones_like(penalties)
        self.slopes = torch.zeros_like(penalties)
        self.pairs = list(pairs)
        self._curvatures = [self._curvature(pair) for pair in pairs]

    @property
    def trial_points(self) -> Tensor:
        """The points [C, D] whose losses `tell` expects next."""
        return self.points + self._per_row(self.steps) * self.directions

    @property
    def expected_decreases(self) -> Tensor:
        """The decreases [V] that the quadratic model promises for a full step."""
        return -self.slopes / 2

    @property
    def is_stuck(self) -> Tensor:
        """Whether no step along the direction lowers the loss [V], as rounding leaves no gain."""
        return self.steps < _SMALLEST_STEP

    def tell(self, losses: Tensor, loss_gradients: Tensor) -> Tensor:
        """Take the losses [V] and gradients [C, D] at `trial_points`; return which are accepted.

        Where a point is accepted, a new direction is ready afterwards.
        """
        trial = self.trial_points
        before = self.losses + self._penalty_terms(self.points)
        bound = before + _SUFFICIENT_DECREASE * self.steps * self.slopes + _ROUNDING * before.abs()
        accepted = losses + self._penalty_terms(trial) <= bound
        rows = accepted[self.owners].unsqueeze(1)
        has_step = (accepted & torch.isfinite(self.losses))[self.owners].unsqueeze(1)
        pair = Pair(
            torch.where(has_step, trial - self.points, 0.0),
            torch.where(has_step, loss_gradients - self.loss_gradients, 0.0),
        )
        self.pairs.append(pair)
        self._curvatures.append(self._curvature(pair))
        del self.pairs[:-_N_PAIRS], self._curvatures[:-_N_PAIRS]
        self.points = torch.where(rows, trial, self.points)
        self.loss_gradients = torch.where(rows, loss_gradients, self.loss_gradients)
        self.losses = torch.where(accepted, losses, self.losses)
        self.steps = self.steps * _SHRINK_STEP
        self._aim(accepted)
        return accepted

    def set_penalties(self, penalties: Tensor) -> None:
        """Change the penalties [V]; problems with a new penalty start in a new direction."""
        changed = penalties != self.penalties
        self.penalties = penalties
        self._curvatures = [self._curvature(pair) for pair in self.pairs]
        self._aim(changed)

    def keep(self, problems: Tensor) -> None:
        """Forget all problems but those marked True in [V]."""
        if bool(problems.all()):
            return
        rows = problems[self.owners]
        self.owners = (torch.cumsum(problems, dim=0) - 1)[self.owners[rows]]
        self.points, self.curvature = self.points[rows], self.curvature[rows]
        self.loss_gradients, self.directions = self.loss_gradients[rows], self.directions[rows]
        self.pairs = [Pair(step[rows], change[rows]) for step, change in self.pairs]
        self._curvatures = [
            _Curvature(step[rows], change[rows], inverse[problems])
            for step, change, inverse in self._curvatures
        ]
        self.penalties, self.losses = self.penalties[problems], self.losses[problems]
        self.steps, self.slopes = self.steps[problems], self.slopes[problems]

    def pairs_of(self, problem: int) -> list[Pair]:
        """Return what is known about one problem's curvature."""
        rows = self.owners == problem
        return [Pair(step[rows], change[rows]) for step, change in self.pairs]

    def _aim(self, problems: Tensor) -> None:
        """Choose a new direction and a full step for the problems marked True in [V]."""
        gradients = self.loss_gradients + self._shrinkage() * self.points
        directions = self._times_inverse_hessian(gradients).neg_()
        rows = problems[self.owners].unsqueeze(1)
        self.directions = torch.where(rows, directions, self.directions)
        self.slopes = self._products(self.directions, gradients)
        self.steps = torch.where(problems, 1.0, self.steps)

    def _times_inverse_hessian(self, gradients: Tensor) -> Tensor:
        found = gradients.clone()
        weights = []
        for step, change, inverse in reversed(self._curvatures):
            weights.append(inverse * self._products(step, found))
            found.addcmul_(self._per_row(weights[-1]), change, value=-1)
        found *= self._inverse_preconditioner()
        for (step, change, inverse), weight in zip(
            self._curvatures, reversed(weights), strict=True
        ):
            correction = weight - inverse * self._products(change, found)
            found.addcmul_(self._per_row(correction), step)
        return found

    def _inverse_preconditioner(self) -> Tensor:
        """Return the diagonal [C, D], corrected in scale by each problem's latest pair."""
        diagonal = 1 / (self.curvature + self._shrinkage())
        scaling, unscaled = torch.ones_like(self.penalties), torch.ones_like(self.penalties).bool()
        for _, change, inverse in reversed(self._curvatures):
            if not bool(unscaled.any()):
                break
            norms = self._products(change * diagonal, change)
            usable = unscaled & (inverse > 0) & (norms > 0)
            scaling = torch.where(usable, 1 / (inverse * norms), scaling)
            unscaled = unscaled & ~usable
        return diagonal.mul_(self._per_row(scaling))

    def _curvature(self, pair: Pair) -> _Curvature:
        change = pair.change + self._shrinkage() * pair.step
        product = self._products(pair.step, change)
        return _Curvature(pair.step, change, torch.where(product > 0, 1 / product, 0.0))

    def _penalty_terms(self, points: Tensor) -> Tensor:
        return self.penalties / 2 * self._products(points * self.penalised, points)

    def _shrinkage(self) -> Tensor:
        return self._per_row(self.penalties) * self.penalised

    def _per_row(self, values: Tensor) -> Tensor:
        """Spread values [V] over rows [C, 1] in the points' number format."""
        return values.to(self.points.dtype)[self.owners].unsqueeze(1)

    def _products(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the inner products [V] of rows [C, D] per problem."""
        by_row = torch.linalg.vecdot(left, right)
        return torch.zeros_like(self.penalties).index_add_(
            0, self.owners, by_row.to(self.penalties.dtype)
        )
