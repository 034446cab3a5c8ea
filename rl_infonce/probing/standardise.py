"""Measure the scale and the axes of features on the training part."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Standardisation(NamedTuple):
    """Mean and standard deviation [D] of the dimensions; a constant dimension has the scale 1."""

    mean: FloatArray
    scale: FloatArray
    varies: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, features: npt.NDArray[Any]) -> Standardisation:
        """Measure features [K, D]; a spread within float32 rounding counts as 0."""
        mean = features.mean(axis=0, dtype=np.float64)
        spread = features.std(axis=0, dtype=np.float64)
        varies = spread > np.finfo(np.float32).eps * np.abs(features).max(axis=0)
        return cls(mean, np.where(varies, spread, 1.0), varies)

    def __call__(self, features: npt.NDArray[Any]) -> FloatArray:
        """Return features [K, D] with mean 0 and deviation 1 in training, or 0 where constant."""
        standardised: FloatArray = (features - self.mean) / self.scale
        standardised[:, ~self.varies] = 0
        return standardised


def principal_axes(standardised: FloatArray, negligible: float) -> tuple[FloatArray, FloatArray]:
    """Return the axes [D, R] along which inputs [N, D] are uncorrelated, and their variances [R].

    Axes with a variance of at most `negligible` are left out.
    """
    variances, axes = np.linalg.eigh(standardised.T @ standardised / len(standardised))
    kept = variances > negligible
    return axes[:, kept], variances[kept]
