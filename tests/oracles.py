"""Loop references written from the papers' equations, in plain Python floats.

Slow, literal and independent of the package: sums of exponentials as printed, one scalar at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]
Mask = Sequence[Sequence[bool]]


def info_nce(scores: Matrix, mask: Mask | None = None) -> list[float]:
    """van den Oord et al. 2018, eq. 4, f = exp(score): -log f(x_i, c_i) / sum_j f(x_j, c_i)."""
    losses = []
    for i, row in enumerate(scores):
        denominator = 0.0
        for j, score in enumerate(row):
            if mask is None or mask[i][j]:
                denominator += math.exp(score)
        losses.append(-math.log(math.exp(row[i]) / denominator))
    return losses


def symmetric_info_nce(scores: Matrix, mask: Mask | None = None) -> list[float]:
    """Radford et al. 2021, fig. 3: (loss over axis 0 + loss over axis 1) / 2, pair by pair."""
    losses = []
    for i in range(len(scores)):
        over_row = 0.0
        over_column = 0.0
        for j in range(len(scores)):
            if mask is None or mask[i][j]:
                over_row += math.exp(scores[i][j])
            if mask is None or mask[j][i]:
                over_column += math.exp(scores[j][i])
        positive = math.exp(scores[i][i])
        losses.append((-math.log(positive / over_row) - math.log(positive / over_column)) / 2)
    return losses


def info_nce_bound(scores: Matrix, mask: Mask | None = None) -> float:
    """Poole et al. 2019, I_NCE: mean of log f(x_i, y_i) / (1/N_i sum_j f(x_i, y_j))."""
    total = 0.0
    for i, row in enumerate(scores):
        taking_part = [score for j, score in enumerate(row) if mask is None or mask[i][j]]
        mean_of_exp = sum(math.exp(score) for score in taking_part) / len(taking_part)
        total += math.log(math.exp(row[i]) / mean_of_exp)
    return total / len(scores)


def retrieval_accuracy(scores: Matrix, mask: Mask | None = None) -> list[float]:
    """Chance that picking uniformly among the best candidates of row i picks candidate i."""
    accuracies = []
    for i, row in enumerate(scores):
        taking_part = [j for j in range(len(row)) if mask is None or mask[i][j]]
        best = max(row[j] for j in taking_part)
        winners = [j for j in taking_part if row[j] == best]
        accuracies.append(1.0 / len(winners) if i in winners else 0.0)
    return accuracies


def dot_products(anchors: Matrix, candidates: Matrix) -> list[list[float]]:
    """All inner products, anchors by candidates."""
    return [
        [sum(x * y for x, y in zip(anchor, candidate, strict=True)) for candidate in candidates]
        for anchor in anchors
    ]


def unit(vector: Sequence[float]) -> list[float]:
    """The vector divided by its Euclidean length."""
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def standardized(vector: Sequence[float]) -> list[float]:
    """Layer norm without parameters (Ba et al. 2016, eq. 3), with torch's 1e-5 in the variance."""
    mean = sum(vector) / len(vector)
    variance = sum((x - mean) ** 2 for x in vector) / len(vector)
    return [(x - mean) / math.sqrt(variance + 1e-5) for x in vector]


def vector_times_matrix(vector: Sequence[float], matrix: Matrix) -> list[float]:
    """The row vector x^T W."""
    return [
        sum(x * row[column] for x, row in zip(vector, matrix, strict=True))
        for column in range(len(matrix[0]))
    ]
