"""The converged protocol: standardised features, chosen regularisation, trained to the optimum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_infonce.checks import check_count, check_number, warn_user
from rl_infonce.probing.data import N_CLASSES, Labels, checked_penalties
from rl_infonce.probing.lbfgs import BatchedLBFGS, Pair
from rl_infonce.probing.linear import Classifier, Probe
from rl_infonce.probing.softmax_loss import SoftmaxLosses
from rl_infonce.probing.splits import Split
from rl_infonce.probing.standardise import Standardisation, principal_axes

_FAST_TOLERANCE = 3e-5  # nats; products of rounded factors do not resolve less
_PENALTY_WITHOUT_VALIDATION = 1e-3
PENALTY_PATIENCE = 3
"""Penalties in a row without a lower validation loss that end a path: a first rise may be small."""


@dataclass(frozen=True)
class Converged:
    """Settings of the converged probe.

    The probe is multinomial logistic regression on standardised features, over the classes that
    occur in training, with an L2 penalty on the weights (not on the biases) chosen per variable by
    the validation loss. Scores do not depend on the scale or offset of a feature. With few
    validation episodes, the chosen penalties are too strong: `penalties=(1e-3,)` leaves no choice.
    As the loss chooses, F1 may be higher with another penalty.
    A variable with nothing but new classes in validation gets the weakest penalty of 1e-3 or more,
    or else the strongest, with a warning.

    Attributes:
        penalties: Candidates, falling: half the squared weights times the penalty is added to the
            mean loss per frame in nats (scikit-learn's C is 1 / (penalty * frames), twice that for
            two classes, whose weights it holds once). For each variable, the path ends when three
            in a row have not lowered the validation loss.
        tolerance: Nats. A classifier has converged when its quasi-Newton model promises a smaller
            decrease of the penalised loss than this.
        path_tolerance: The tolerance while penalties are compared.
        max_evaluations: Most passes over the training part, for the comparison and for the end.
    """

    penalties: tuple[float, ...] = tuple(10.0 ** (-exponent / 2) for exponent in range(13))
    tolerance: float = 1e-5
    path_tolerance: float = 1e-4
    max_evaluations: int = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalties", checked_penalties(self.penalties))
        if list(self.penalties) != sorted(self.penalties, reverse=True):
            raise ValueError(f"Expected `penalties` to fall, got {self.penalties}.")
        check_number("tolerance", self.tolerance, above=0)
        check_number("path_tolerance", self.path_tolerance, above=0)
        check_count("max_evaluations", self.max_evaluations)


def fit_converged(
    features: npt.NDArray[np.float32],
    labels: Labels,
    split: Split,
    settings: Converged,
    *,
    device: torch.device | str,
) -> Probe:
    """Fit regularised multinomial logistic regressions; see `Converged` and `fit_probe`."""
    standardisation = Standardisation.of(features[split.train])
    standardised = standardisation(features[split.train])
    # s / penalty bounds how far an axis of variance s can lower the loss; their sum is negligible
    negligible = settings.tolerance * settings.penalties[-1] / features.shape[1]
    axes, variances = principal_axes(standardised, negligible)
    problem = _Problem.of(
        _with_ones(standardised @ axes, device),
        _with_ones(standardisation(features[split.validation]) @ axes, device),
        labels,
        split,
        torch.as_tensor(np.append(variances, 1.0), dtype=torch.float32, device=device),
    )
    choices = _choose_penalties(problem, settings)
    _warn_unvalidated(labels, problem, choices)
    weights = _minimise(problem, choices, settings)
    back = torch.as_tensor(axes.T, dtype=torch.float32, device=device)
    back[:, torch.as_tensor(~standardisation.varies, device=back.device)] = 0
    mean = torch.as_tensor(standardisation.mean, dtype=torch.float32, device=device)
    # The probe subtracts the rounded mean: its rest, in standard deviations, goes into the bias.
    rest = (standardisation.mean - mean.cpu().numpy()) / standardisation.scale
    offsets = torch.as_tensor(rest, dtype=torch.float32, device=device)
    classifiers = {
        name: _classifier(each, back, offsets, classes)
        for name, each, classes in zip(labels, weights, problem.classes, strict=True)
    }
    chosen = {name: choice.penalty for name, choice in zip(labels, choices, strict=True)}
    return Probe(
        "converged",
        classifiers,
        mean,
        torch.as_tensor(standardisation.scale, dtype=torch.float32, device=device),
        {**asdict(settings), "penalties": list(settings.penalties), "chosen_penalty": chosen},
    )


def _classifier(
    weights: Tensor, back: Tensor, offsets: Tensor, classes: npt.NDArray[np.uint8]
) -> Classifier:
    """Return the classifier of features that lie `offsets` [D] from standardised ones.

    Weights [C, 1 + axes] are those of the principal axes, and `back` leads from these to features.
    """
    of_features = weights[:, :-1] @ back
    return Classifier(of_features, weights[:, -1] - of_features @ offsets, classes)


class _Problem(NamedTuple):
    """The regressions of all variables on the principal axes; the last input is 1, for the bias."""

    losses: SoftmaxLosses
    validation: Tensor  # [N, D]
    validation_targets: list[Tensor]  # V times [N], -1 where training lacks the class
    classes: list[npt.NDArray[np.uint8]]
    priors: list[Tensor]  # V times [C], share of each class in training
    variances: Tensor  # [D]

    @classmethod
    def of(
        cls,
        train: Tensor,
        validation: Tensor,
        labels: Labels,
        split: Split,
        variances: Tensor,
    ) -> _Problem:
        classes, targets, validation_targets, priors = [], [], [], []
        for values in labels.values():
            found, counts = np.unique(values[split.train], return_counts=True)
            position = np.full(N_CLASSES, -1)
            position[found] = np.arange(len(found))
            classes.append(found.astype(np.uint8))
            priors.append(torch.as_tensor(counts / len(split.train)).to(train))
            targets.append(torch.as_tensor(position[values[split.train]]))
            known = torch.as_tensor(position[values[split.validation]])
            validation_targets.append(known.to(train.device))
        losses = SoftmaxLosses(
            train, torch.stack(targets).to(train.device), [len(found) for found in classes]
        )
        return cls(losses, validation, validation_targets, classes, priors, variances)

    def start(self) -> list[Tensor]:
        """Return weights of 0 for each variable, with biases that give the shares of classes."""
        start = [torch.zeros(len(p), len(self.variances)).to(p) for p in self.priors]
        for weights, priors in zip(start, self.priors, strict=True):
            weights[:, -1] = priors.log()
        return start

    def split(self, points: Tensor, variables: Sequence[int]) -> Sequence[Tensor]:
        """Return the points of each of these variables, which stand one after the other."""
        return torch.split(points, [self.losses.sizes[index] for index in variables])

    def validation_loss(self, variable: int, weights: Tensor) -> float:
        """Return the mean loss over validation frames whose class training has, NaN without any."""
        targets = self.validation_targets[variable]
        if bool((targets < 0).all()):
            return math.nan
        return float(F.cross_entropy(self.validation @ weights.T, targets, ignore_index=-1))

    def solver(
        self, start: list[Tensor], penalties: Sequence[float], pairs: Sequence[Pair] = ()
    ) -> BatchedLBFGS:
        """Return a solver that starts from the given weights and pairs."""
        priors = torch.cat(self.priors)
        sizes = torch.tensor(self.losses.sizes, device=priors.device)
        # the Hessian's diagonal if the probabilities are the shares of the classes
        spread = (priors * (1 - priors)).clamp_min(1e-4)
        penalised = torch.ones_like(self.variances)
        penalised[-1] = 0
        return BatchedLBFGS(
            torch.cat(start),
            torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes),
            spread[:, None] * self.variances,
            torch.tensor(penalties, dtype=torch.float64, device=priors.device),
            penalised,
            pairs=pairs,
        )


class _Choice(NamedTuple):
    penalty: float
    weights: Tensor
    validation_loss: float
    pairs: list[Pair]  # from where the path ended: they also serve the way back


def _choose_penalties(problem: _Problem, settings: Converged) -> list[_Choice]:
    """Follow each variable from the strongest penalty until its validation loss stays higher."""
    start = problem.start()
    strongest = settings.penalties[0]
    choices = [_Choice(strongest, weights, np.inf, []) for weights in start]
    solver = problem.solver(start, [strongest] * len(start))
    position, n_stale = [0] * len(start), [0] * len(start)
    active = list(range(len(start)))
    fast = settings.path_tolerance >= _FAST_TOLERANCE
    for _ in range(settings.max_evaluations):
        accepted = solver.tell(*problem.losses(solver.trial_points, active, fast=fast))
        done = solver.is_stuck | (accepted & (solver.expected_decreases < settings.path_tolerance))
        if not bool(done.any()):
            continue
        keep, penalties = torch.ones_like(done), solver.penalties.clone()
        points = problem.split(solver.points, active)
        for place in torch.nonzero(done).flatten().tolist():
            variable = active[place]
            former, penalty = choices[variable], settings.penalties[position[variable]]
            choices[variable] = _better(problem, variable, penalty, points[place], former)
            position[variable] += 1
            n_stale[variable] = 0 if choices[variable] is not former else n_stale[variable] + 1
            is_hopeful = n_stale[variable] < PENALTY_PATIENCE
            if is_hopeful and position[variable] < len(settings.penalties):
                penalties[place] = settings.penalties[position[variable]]
            else:
                keep[place] = False
                pairs = solver.pairs_of(place)
                choices[variable] = choices[variable]._replace(pairs=pairs)
        solver.set_penalties(penalties)
        solver.keep(keep)
        active = [variable for place, variable in enumerate(active) if keep[place]]
        if not active:
            return choices
    _warn_unfinished(len(active), "reach the end of their penalties", problem, settings)
    return choices


def _better(
    problem: _Problem, variable: int, penalty: float, weights: Tensor, former: _Choice
) -> _Choice:
    """Return the choice of a penalty, or the former, stronger one if that is better."""
    loss = problem.validation_loss(variable, weights)
    is_better = loss < former.validation_loss
    if math.isnan(loss):  # no validation frame can decide
        is_first = former.validation_loss == np.inf
        is_better = is_first or penalty >= _PENALTY_WITHOUT_VALIDATION
    return _Choice(penalty, weights.clone(), loss, []) if is_better else former


def _minimise(problem: _Problem, choices: list[_Choice], settings: Converged) -> list[Tensor]:
    """Continue from the chosen weights until each variable has converged."""
    found = [choice.weights for choice in choices]
    pairs = _side_by_side([choice.pairs for choice in choices], found)
    solver = problem.solver(found, [choice.penalty for choice in choices], pairs)
    active = list(range(len(found)))
    for _ in range(settings.max_evaluations):
        accepted = solver.tell(*problem.losses(solver.trial_points, active))
        for variable, points in zip(active, problem.split(solver.points, active), strict=True):
            found[variable] = points
        left = ~solver.is_stuck & (~accepted | (solver.expected_decreases >= settings.tolerance))
        active = [variable for place, variable in enumerate(active) if left[place]]
        if not active:
            return found
        solver.keep(left)
    _warn_unfinished(len(active), f"converge to {settings.tolerance:g} nats", problem, settings)
    return found


def _warn_unvalidated(names: Iterable[str], problem: _Problem, choices: list[_Choice]) -> None:
    chosen = zip(names, problem.validation_targets, choices, strict=True)
    given = {name: each.penalty for name, known, each in chosen if bool((known < 0).all())}
    if given:
        # All of them have the same penalty, as no loss decides it.
        warn_user(
            f"No validation frame of {', '.join(given)} has a class of the training frames, "
            f"so the penalty is {min(given.values()):g}, not chosen. Collect more frames.",
        )


def _warn_unfinished(n_left: int, what: str, problem: _Problem, settings: Converged) -> None:
    warn_user(
        f"{n_left} of {len(problem.classes)} variables did not {what} within "
        f"`max_evaluations`={settings.max_evaluations} passes. Raise `max_evaluations`.",
    )


def _side_by_side(pairs: list[list[Pair]], like: list[Tensor]) -> list[Pair]:
    """Join the pairs of several variables into those of one solver, the latest ones together."""
    longest = max(len(each) for each in pairs)
    padded = []
    for each, weights in zip(pairs, like, strict=True):
        nothing = torch.zeros_like(weights)
        padded.append([Pair(nothing, nothing)] * (longest - len(each)) + each)
    return [
        Pair(torch.cat([step for step, _ in joined]), torch.cat([change for _, change in joined]))
        for joined in zip(*padded, strict=True)
    ]


def _with_ones(inputs: npt.NDArray[np.float64], device: torch.device | str) -> Tensor:
    ones = np.ones((len(inputs), 1))
    return torch.as_tensor(np.append(inputs, ones, axis=1), dtype=torch.float32, device=device)
