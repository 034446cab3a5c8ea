"""Noise distributions over a finite support, drawn from in constant time per sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_infonce.checks import check_count, check_number, check_shape
from rl_infonce.nce._candidates import check_floating


class CategoricalNoise:
    """A distribution q over V outcomes, with O(V) set-up and O(1) work per draw.

    It draws by Walker's alias method (Vose 1991, "A Linear Algorithm for Generating Random Numbers
    with a Given Distribution"): outcome v keeps the share `keep[v]` of its column of height 1 / V,
    the rest belongs to `alias[v]`.

    Args:
        log_probs: [V] log q of each outcome, normalised; -inf for those that are never drawn.

    Attributes:
        log_probs: [V] log q in float64.

    Raises:
        TypeError: If `log_probs` is not floating point.
        ValueError: If `log_probs` is no vector, holds NaN or is not normalised.
    """

    def __init__(self, log_probs: Tensor) -> None:
        check_shape("log_probs", log_probs, ("V",))
        check_floating("log_probs", log_probs)
        total = float(log_probs.double().exp().sum()) if len(log_probs) else 0.0
        # NaN also fails this comparison.
        if not abs(total - 1.0) <= 1e-3:
            raise ValueError(
                f"Expected `log_probs` to be normalised, got probabilities that sum to {total:g}. "
                "Pass scores.float().log_softmax(0)."
            )
        self.log_probs = log_probs.detach().double() - math.log(total)
        keep, alias = _alias_table(self.log_probs.exp().tolist())
        self.keep = torch.tensor(keep, dtype=torch.float64, device=log_probs.device)
        self.alias = torch.tensor(alias, device=log_probs.device)

    def __len__(self) -> int:
        return len(self.log_probs)

    def sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw outcomes independently.

        Args:
            shape: Shape of the result.
            generator: Source of all randomness, on the device of `log_probs`.

        Returns:
            int64 outcomes in [0, V).
        """
        device = self.log_probs.device
        columns = torch.randint(len(self), shape, generator=generator, device=device)
        height = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        return torch.where(height < self.keep[columns], columns, self.alias[columns])

    def log_prob(self, outcomes: Tensor) -> Tensor:
        """Return log q of outcomes [...], as float32.

        Raises:
            ValueError: If an outcome is not in [0, V).
        """
        if outcomes.numel() and not 0 <= int(outcomes.min()) <= int(outcomes.max()) < len(self):
            raise ValueError(f"Expected `outcomes` in [0, {len(self)}), got others.")
        return self.log_probs[outcomes.long()].float()  # uint8 would index as a mask


def uniform_noise(n_outcomes: int, *, device: torch.device | str | None = None) -> CategoricalNoise:
    """Return q = 1 / V for V outcomes.

    Args:
        n_outcomes: V >= 1.
        device: Where samples are drawn; None is torch's default.

    Raises:
        TypeError: If `n_outcomes` is no integer.
        ValueError: If `n_outcomes` is below 1.
    """
    check_count("n_outcomes", n_outcomes)
    log_probs = torch.full((n_outcomes,), -math.log(n_outcomes), dtype=torch.float64, device=device)
    return CategoricalNoise(log_probs)


def unigram_noise(counts: Tensor, *, power: float = 1.0) -> CategoricalNoise:
    """Return q proportional to counts^power, as in word2vec with power 0.75 (Mikolov et al. 2013).

    Args:
        counts: [V] how often each outcome occurs, >= 0, at least one > 0.
        power: 1 for the data's own frequencies, 0 for uniform noise over what occurs.

    Raises:
        TypeError: If `power` is no number.
        ValueError: If `counts` is no vector, has a negative or not finite entry or is all 0, or
            `power` is negative.
    """
    check_shape("counts", counts, ("V",))
    check_number("power", power, at_least=0.0)
    weights = counts.double()
    if not bool((torch.isfinite(weights) & (weights >= 0)).all()) or not bool(weights.any()):
        raise ValueError("Expected `counts` to be finite, >= 0 and not all 0, got other entries.")
    log_weights = torch.where(weights > 0, power * weights.log(), -math.inf)
    return CategoricalNoise(torch.log_softmax(log_weights, dim=0))


def _alias_table(probs: list[float]) -> tuple[list[float], list[int]]:
    """Return what share of its column each outcome keeps, and who owns the rest."""
    heights = [prob * len(probs) for prob in probs]
    keep, alias = [1.0] * len(probs), list(range(len(probs)))
    small = [v for v, height in enumerate(heights) if height < 1.0]
    large = [v for v, height in enumerate(heights) if height >= 1.0]
    while small and large:
        lower, upper = small.pop(), large[-1]
        keep[lower], alias[lower] = heights[lower], upper
        heights[upper] -= 1.0 - heights[lower]
        if heights[upper] < 1.0:
            small.append(large.pop())
    return keep, alias
