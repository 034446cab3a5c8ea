"""Loop references written from the papers' equations, in plain Python floats.

Slow, literal and independent of the package: sums of exponentials as printed, one scalar at a time.
"""

import math
from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]
Mask = Sequence[Sequence[bool]]


def info_nce(scores: Matrix, mask: Mask | None = None) -> list[float]:
    """van den Oord et al. 2018, eq. 4, f = exp(score): -log f(x_i, c_i) / sum_j f(x_j, c_i)."""
    losses = []
    for i, row in enumerate(scores):
        denominator = sum(math.exp(row[j]) for j in _taking_part(i, row, mask))
        losses.append(-math.log(math.exp(row[i]) / denominator))
    return losses


def symmetric_info_nce(scores: Matrix, mask: Mask | None = None) -> list[float]:
    """Radford et al. 2021, fig. 3: (loss over axis 0 + loss over axis 1) / 2, pair by pair."""
    columns = list(zip(*scores, strict=True))
    over_columns = info_nce(columns, None if mask is None else list(zip(*mask, strict=True)))
    return [(a + b) / 2 for a, b in zip(info_nce(scores, mask), over_columns, strict=True)]


def nt_xent(views: Matrix, temperature: float) -> float:
    """Chen et al. 2020, eq. 1 and algorithm 1: images 2k-1 and 2k (from 1) are a pair, mean of all.

    -log exp(sim(z_i, z_j) / tau) / sum_k [k != i] exp(sim(z_i, z_k) / tau).
    """
    units = [unit(view) for view in views]
    similarities = dot_products(units, units)
    total = 0.0
    for i, row in enumerate(similarities):
        j = i + 1 if i % 2 == 0 else i - 1
        others = sum(math.exp(row[k] / temperature) for k in range(len(row)) if k != i)
        total -= math.log(math.exp(row[j] / temperature) / others)
    return total / len(units)


def info_nce_bound(scores: Matrix, mask: Mask | None = None) -> float:
    """Poole et al. 2019, I_NCE: mean of log f(x_i, y_i) / (1/N_i sum_j f(x_i, y_j))."""
    total = 0.0
    for i, row in enumerate(scores):
        used = _taking_part(i, row, mask)
        mean_of_exp = sum(math.exp(row[j]) for j in used) / len(used)
        total += math.log(math.exp(row[i]) / mean_of_exp)
    return total / len(scores)


def retrieval_accuracy(scores: Matrix, mask: Mask | None = None) -> list[float]:
    """Chance that picking uniformly among the best candidates of row i picks candidate i."""
    accuracies = []
    for i, row in enumerate(scores):
        used = _taking_part(i, row, mask)
        winners = [j for j in used if row[j] == max(row[k] for k in used)]
        accuracies.append(1.0 / len(winners) if i in winners else 0.0)
    return accuracies


def decoupled_info_nce(scores: Matrix, mask: Mask | None = None) -> list[float]:
    """Yeh et al. 2022, L_DC: -s_ii + log of the sum over negatives alone."""
    return [
        -scores[i][i] + math.log(sum(map(math.exp, negatives)))
        for i, negatives in enumerate(_negatives(scores, mask))
    ]


def soft_info_nce(scores: Matrix, targets: Matrix, mask: Mask | None = None) -> list[float]:
    """Hinton et al. 2015: -sum_j t_j log softmax_j, candidate by candidate."""
    losses = []
    for i, row in enumerate(scores):
        used = _taking_part(i, row, mask)
        denominator = sum(math.exp(row[j]) for j in used)
        losses.append(-sum(targets[i][j] * math.log(math.exp(row[j]) / denominator) for j in used))
    return losses


def supervised_contrastive(
    scores: Matrix, positives: Mask, mask: Mask | None = None
) -> list[float]:
    """Khosla et al. 2020, eq. 2: -1/|P| sum_p log (exp s_p / sum_a exp s_a)."""
    shares = [[is_positive / sum(row) for is_positive in row] for row in positives]
    return soft_info_nce(scores, shares, mask)


def hard_negative_info_nce(
    scores: Matrix,
    concentration: float,
    class_prior: float,
    min_score: float,
    mask: Mask | None = None,
) -> list[float]:
    """Robinson et al. 2021 with Chuang et al. 2020, eq. 7 and 8, M = 1, t in the scores."""
    losses = []
    for i, negatives in enumerate(_negatives(scores, mask)):
        n = len(negatives)
        tilts = [math.exp(concentration * s) for s in negatives]
        weights = [tilt / (sum(tilts) / n) for tilt in tilts]
        mean = sum(w * math.exp(s) for w, s in zip(weights, negatives, strict=True)) / n
        positive = math.exp(scores[i][i])
        g = max((mean - class_prior * positive) / (1 - class_prior), math.exp(min_score))
        losses.append(-math.log(positive / (positive + n * g)))
    return losses


def exact_nll(scores: Matrix, targets: Sequence[int]) -> list[float]:
    """-log (exp s_target / sum_v exp s_v)."""
    return [
        -math.log(math.exp(row[target]) / sum(map(math.exp, row)))
        for row, target in zip(scores, targets, strict=True)
    ]


def partition_nll(positives: Matrix, noise: Matrix, noise_log_q: Matrix) -> list[float]:
    """Bengio & Senecal 2003: log of (1/K sum_k exp s_k / q_k) minus the positive's score."""
    losses = []
    for row, weights in zip(positives, _importance_weights(noise, noise_log_q), strict=True):
        partition = sum(weights) / len(weights)
        losses.append(sum(math.log(partition) - s for s in row) / len(row))
    return losses


def effective_sample_size(noise: Matrix, noise_log_q: Matrix) -> list[float]:
    """Kong 1992: (sum w)^2 / sum w^2."""
    rows = _importance_weights(noise, noise_log_q)
    return [sum(weights) ** 2 / sum(w**2 for w in weights) for weights in rows]


def local_nce(
    positives: Matrix,
    noise: Matrix,
    positive_log_q: Matrix,
    noise_log_q: Matrix,
    log_z: Sequence[float],
) -> list[float]:
    """Mnih & Teh 2012, eq. 7: log p/(p + k q) over data, log k q/(p + k q) over noise."""
    losses = []
    for i, row in enumerate(noise):
        k = len(row)
        total = 0.0
        for s, q in zip(positives[i], positive_log_q[i], strict=True):
            p = math.exp(s) / math.exp(log_z[i])
            total -= math.log(p / (p + k * math.exp(q))) / len(positives[i])
        for s, q in zip(row, noise_log_q[i], strict=True):
            p = math.exp(s) / math.exp(log_z[i])
            total -= math.log(k * math.exp(q) / (p + k * math.exp(q)))
        losses.append(total)
    return losses


def ranking_nce(
    positives: Matrix, noise: Matrix, positive_log_q: Matrix, noise_log_q: Matrix
) -> list[float]:
    """Ma & Collins 2018, eq. 2: pick the positive among itself and the noise by exp(s) / q."""
    losses = []
    of_positives = _importance_weights(positives, positive_log_q)
    of_noise = _importance_weights(noise, noise_log_q)
    for ratios, weights in zip(of_positives, of_noise, strict=True):
        total = sum(math.log(ratio / (ratio + sum(weights))) for ratio in ratios)
        losses.append(-total / len(ratios))
    return losses


def negative_sampling(positives: Matrix, noise: Matrix) -> list[float]:
    """Mikolov et al. 2013, eq. 4: -log sigmoid(s) - sum_k log sigmoid(-s_k)."""
    losses = []
    for i, row in enumerate(noise):
        total = -sum(math.log(1 / (1 + math.exp(-s))) for s in positives[i]) / len(positives[i])
        total -= sum(math.log(1 / (1 + math.exp(s))) for s in row)
        losses.append(total)
    return losses


def nwj_bound(scores: Matrix, mask: Mask | None = None) -> float:
    """Nguyen et al. 2010; Poole et al. 2019, eq. 5 with f = s + 1: E[f] - E[exp(f)] / e."""
    off = [s + 1 for row in _negatives(scores, mask) for s in row]
    joint = sum(scores[i][i] + 1 for i in range(len(scores))) / len(scores)
    return joint - sum(map(math.exp, off)) / len(off) / math.e


def smile_estimate(scores: Matrix, clip: float, mask: Mask | None = None) -> float:
    """Song & Ermon 2020, eq. 17: E[s] - log E[clip(exp s, e^-tau, e^tau)]."""
    off = [s for row in _negatives(scores, mask) for s in row]
    clipped = [min(max(math.exp(s), math.exp(-clip)), math.exp(clip)) for s in off]
    joint = sum(scores[i][i] for i in range(len(scores))) / len(scores)
    return joint - math.log(sum(clipped) / len(off))


def density_ratio_score(scores: Sequence[float], references: Matrix) -> list[float]:
    """exp(s) over its mean under the marginal, as a logarithm."""
    return [
        math.log(math.exp(s) / (sum(map(math.exp, row)) / len(row)))
        for s, row in zip(scores, references, strict=True)
    ]


def _taking_part(i: int, row: Sequence[float], mask: Mask | None) -> list[int]:
    return [j for j in range(len(row)) if mask is None or mask[i][j]]


def _negatives(scores: Matrix, mask: Mask | None) -> list[list[float]]:
    return [[row[j] for j in _taking_part(i, row, mask) if j != i] for i, row in enumerate(scores)]


def _importance_weights(scores: Matrix, log_q: Matrix) -> list[list[float]]:
    return [
        [math.exp(s) / math.exp(q) for s, q in zip(row, of_row, strict=True)]
        for row, of_row in zip(scores, log_q, strict=True)
    ]


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
