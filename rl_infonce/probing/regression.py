"""Read positions in pixels off frozen features by ridge regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_infonce.checks import check_shape
from rl_infonce.probing.arrays import as_array, as_arrays
from rl_infonce.probing.data import checked_penalties
from rl_infonce.probing.metrics import FloatArray
from rl_infonce.probing.probe import checked_features
from rl_infonce.probing.splits import Split
from rl_infonce.probing.standardise import Standardisation

_PENALTIES = tuple(float(10.0**exponent) for exponent in range(-6, 3))


class RidgeScore(NamedTuple):
    """Scores of a position's readings on the test part.

    R^2 is 1 for a perfect reading, 0 for the mean of the test positions and below 0 for any other
    constant, also the mean of the training part; it is NaN if the test positions do not vary. The
    median absolute error is in the unit of the positions.
    """

    r2: float
    median_absolute_error: float
    penalty: float


def ridge_probe(
    features: npt.NDArray[np.float32],
    positions: Mapping[str, npt.NDArray[Any]],
    split: Split,
    *,
    penalties: Sequence[float] = _PENALTIES,
) -> tuple[dict[str, RidgeScore], dict[str, FloatArray]]:
    """Read positions off standardised features with a penalty chosen by validation.

    A class label says whether the ball is at byte 80; a regression also says by how much a reading
    missed. Use it only for bytes that are positions: scores in BCD and bit fields are not.

    Args:
        features: Features [K, D] float32, an array, a tensor or a list.
        positions: Positions [K] in pixels by variable, NaN for frames without one, for example
            because the object is not on the screen. Such frames are left out.
        split: Rows for training, validation and test.
        penalties: Candidates, each > 0: weights of the squared coefficients relative to the mean
            squared error; the validation error chooses.

    Returns:
        Scores by variable, and readings [n_test] by variable (also for frames without a position).

    Raises:
        ValueError: If shapes do not fit, features are not finite or do not vary, a penalty is not
            above 0 or a part has no frame with a position.
    """
    features, split = checked_features(features, split, needed=Split._fields)
    penalties = checked_penalties(penalties)
    scores, readings = {}, {}
    fits: dict[bytes, _Ridge] = {}
    for name, values in as_arrays("positions", positions).items():
        check_shape(f"positions[{name!r}]", values, (len(features),))
        target, parts = _with_positions(name, values, split)
        key = parts.train.tobytes()
        if key not in fits:
            fits[key] = _Ridge(features, parts.train)
        readings[name], penalty = fits[key].read(features, target, parts, split.test, penalties)
        present = np.isfinite(target[split.test])
        scores[name] = _score(readings[name][present], target[parts.test], penalty)
    return scores, readings


def mean_position_scores(
    positions: Mapping[str, npt.NDArray[Any]], split: Split
) -> dict[str, RidgeScore]:
    """Score the mean position of the training part, the floor of every `ridge_probe`.

    Args:
        positions: Positions [K] by variable, NaN for frames without one.
        split: Rows for training, validation and test, below K.

    Returns:
        Scores by variable, at an infinite penalty.

    Raises:
        ValueError: If shapes do not fit or a part has no frame with a position.
    """
    positions, split = as_arrays("positions", positions), Split(*map(as_array, split))
    _check_positions(positions, 1 + max(int(rows.max(initial=-1)) for rows in split))
    scores = {}
    for name, values in positions.items():
        target, parts = _with_positions(name, values, split)
        readings = np.full(len(parts.test), target[parts.train].mean())
        scores[name] = _score(readings, target[parts.test], np.inf)
    return scores


def _check_positions(positions: Mapping[str, npt.NDArray[Any]], n_needed: int) -> None:
    n_frames: str | int = "K"
    for name, values in positions.items():
        check_shape(f"positions[{name!r}]", values, (n_frames,))
        n_frames = len(values)
        if n_frames < n_needed:
            raise ValueError(
                f"Expected `positions[{name!r}]` for {n_needed} frames or more, as `split` has "
                f"rows up to {n_needed - 1}, got {n_frames}."
            )


def _with_positions(name: str, values: npt.NDArray[Any], split: Split) -> tuple[FloatArray, Split]:
    """Return the positions, and the rows of each part that have one."""
    target = np.asarray(values, np.float64)
    parts = Split(*(rows[np.isfinite(target[rows])] for rows in split))
    for part, rows in zip(Split._fields, parts, strict=True):
        if len(rows) == 0:
            raise ValueError(
                f"Expected `positions[{name!r}]` in some {part} frame, got NaN in all of them."
            )
    return target, parts


class _Ridge:
    """Solves for all penalties at once by one eigendecomposition of the features' covariance."""

    def __init__(self, features: npt.NDArray[np.float32], train: npt.NDArray[np.int64]) -> None:
        self.standardised = Standardisation.of(features[train])
        self.inputs = self.standardised(features[train])
        variances, self.axes = np.linalg.eigh(self.inputs.T @ self.inputs / len(train))
        self.variances = np.maximum(variances, 0).astype(np.float64)

    def read(
        self,
        features: npt.NDArray[np.float32],
        target: FloatArray,
        parts: Split,
        rows: npt.NDArray[np.int64],
        penalties: Sequence[float],
    ) -> tuple[FloatArray, float]:
        centre = target[parts.train].mean()
        moments = self.axes.T @ (self.inputs.T @ (target[parts.train] - centre)) / len(parts.train)
        solutions = moments[:, None] / (self.variances[:, None] + np.asarray(penalties))  # [D, P]
        rotated = self.standardised(features[parts.validation]) @ self.axes
        errors = rotated @ solutions + centre - target[parts.validation][:, None]
        best = int(np.square(errors).mean(axis=0).argmin())
        coefficients = self.axes @ solutions[:, best]
        return self.standardised(features[rows]) @ coefficients + centre, penalties[best]


def _score(readings: FloatArray, target: FloatArray, penalty: float) -> RidgeScore:
    residual = np.square(readings - target).sum()
    total = np.square(target - target.mean()).sum()
    # not `total > 0`: a mean of equal numbers is rounded
    r2 = 1 - residual / total if np.ptp(target) > 0 else np.nan
    return RidgeScore(float(r2), float(np.median(np.abs(readings - target))), float(penalty))
