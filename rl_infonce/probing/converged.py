"""The converged protocol: standardised features, chosen regularisation, trained to the optimum."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_infonce.probing.data import Labels
from rl_infonce.probing.linear import Classifier, Probe
from rl_infonce.probing.splits import Split

__all__ = ["Converged", "fit_converged", "standardisation"]


@dataclass(frozen=True)
class Converged:
    """Settings of the converged probe.

    Attributes:
        penalties: The L2 penalties to choose from, per variable, by validation loss.
        max_iterations: Of L-BFGS, per penalty.
    """

    penalties: tuple[float, ...] = (1e-2, 1e-3, 1e-4, 1e-5)
    max_iterations: int = 50


def fit_converged(
    features: npt.NDArray[np.float32],
    labels: Labels,
    split: Split,
    settings: Converged,
    *,
    device: torch.device | str,
) -> Probe:
    """Fit regularised multinomial logistic regressions; see `Converged` and `fit_probe`."""
    mean, scale, varies = standardisation(features[split.train])
    inputs = torch.as_tensor((features - mean) / scale, dtype=torch.float32, device=device)
    inputs[:, ~torch.as_tensor(varies)] = 0
    classifiers, penalties = {}, {}
    for name, values in labels.items():
        classifiers[name], penalties[name] = _fit(inputs, np.asarray(values), split, settings)
    return Probe(
        "converged",
        classifiers,
        torch.as_tensor(mean, dtype=torch.float32, device=device),
        torch.as_tensor(scale, dtype=torch.float32, device=device),
        {**asdict(settings), "chosen_penalty": penalties},
    )


def standardisation(
    features: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return mean, scale and whether it varies of each dimension; the scale of others is 1."""
    mean = features.mean(axis=0, dtype=np.float64)
    scale = features.std(axis=0, dtype=np.float64)
    varies = scale > np.finfo(np.float32).eps * np.abs(features).max(axis=0)
    return mean, np.where(varies, scale, 1.0), varies


def _fit(
    inputs: Tensor, values: npt.NDArray[np.int64], split: Split, settings: Converged
) -> tuple[Classifier, float]:
    classes = np.unique(values[split.train])
    position = np.full(256, -1)
    position[classes] = np.arange(len(classes))
    targets = torch.as_tensor(position[values], device=inputs.device)
    known = split.validation[position[values[split.validation]] >= 0]
    weight = torch.zeros(len(classes), inputs.shape[1], requires_grad=True)
    bias = torch.zeros(len(classes), requires_grad=True)
    best, best_loss, best_penalty = (weight.detach().clone(), bias.detach().clone()), np.inf, 0.0
    for penalty in settings.penalties:
        optimizer = torch.optim.LBFGS(
            [weight, bias], max_iter=settings.max_iterations, line_search_fn="strong_wolfe"
        )

        def objective(penalty: float = penalty, optimizer: torch.optim.LBFGS = optimizer) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(
                F.linear(inputs[split.train], weight, bias), targets[split.train]
            )
            loss = loss + penalty / 2 * weight.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        optimizer.step(objective)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            scores = F.linear(inputs[known], weight, bias)
            loss = float(F.cross_entropy(scores, targets[known])) if len(known) else 0.0
        if loss < best_loss:
            best, best_loss = (weight.detach().clone(), bias.detach().clone()), loss
            best_penalty = penalty
    return Classifier(*best, classes.astype(np.uint8)), best_penalty
