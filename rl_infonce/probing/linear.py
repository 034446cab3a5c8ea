"""One linear softmax classifier per variable, which every protocol returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_infonce.probing.arrays import as_features

_ROWS_PER_PRODUCT = 8192


@dataclass(frozen=True)
class Classifier:
    """A linear map from (standardised) features to scores of one variable's classes.

    Attributes:
        weight: Weights [C, D] float32.
        bias: Biases [C] float32.
        classes: Label of each row [C], uint8.
    """

    weight: Tensor
    bias: Tensor
    classes: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Probe:
    """Fitted classifiers of several variables.

    Attributes:
        protocol: The protocol that fitted them.
        classifiers: Classifiers by variable.
        mean: Mean [D], subtracted from the features; zeros if the protocol does not standardise.
        scale: Scale [D], by which the features are divided then.
        settings: The protocol's settings and what it chose, as JSON can hold them.
    """

    protocol: str
    classifiers: Mapping[str, Classifier]
    mean: Tensor
    scale: Tensor
    settings: dict[str, Any] = field(default_factory=dict)

    def predict(self, features: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.uint8]]:
        """Return the most probable class of each variable.

        Args:
            features: Features [B, D], not standardised: an array, a tensor or a list.

        Returns:
            Classes [B] by variable.

        Raises:
            TypeError: If features are no real numbers.
            ValueError: If features have another D than those of the fit, or hold NaN or infinity.
        """
        features = as_features(features, "B", len(self.mean))
        found: dict[str, list[npt.NDArray[np.uint8]]] = {name: [] for name in self.classifiers}
        weight = torch.cat([each.weight for each in self.classifiers.values()])
        bias = torch.cat([each.bias for each in self.classifiers.values()])
        sizes = [len(each.bias) for each in self.classifiers.values()]
        for start in range(0, max(len(features), 1), _ROWS_PER_PRODUCT):
            rows = torch.as_tensor(features[start : start + _ROWS_PER_PRODUCT])
            standardised = (rows.to(self.mean) - self.mean) / self.scale
            scores = torch.addmm(bias, standardised, weight.T)
            for (name, each), part in zip(
                self.classifiers.items(), torch.split(scores, sizes, dim=1), strict=True
            ):
                found[name].append(each.classes[part.argmax(dim=1).cpu().numpy()])
        return {name: np.concatenate(parts) for name, parts in found.items()}
